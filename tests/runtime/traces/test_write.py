"""What is written reads back equal, byte for byte the same, and never half."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from kvalet.runtime.traces import (
    Trace,
    TraceError,
    encode_trace,
    read_traces,
    write_trace,
)

from .builders import make_family, make_trace
from .strategies import traces


@settings(max_examples=40, deadline=None)
@given(traces())
def test_a_trace_reads_back_equal(trace: Trace) -> None:
    """Writing loses nothing, and writing again gives the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.jsonl")
        length_bytes = write_trace(trace, path)
        data = path.read_bytes()
        assert len(data) == length_bytes
        assert read_traces([path]) == trace
        assert b"".join(encode_trace(read_traces([path]))) == data


def test_kinship_reads_back_equal(tmp_path: Path) -> None:
    """Parents, spawning calls and children survive."""
    path = tmp_path / "t.jsonl"
    write_trace(make_family(), path)
    assert read_traces([path]) == make_family()


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """A folder stands where the file should go: an error, and no debris."""
    target = tmp_path / "t.jsonl"
    target.mkdir()
    with pytest.raises(TraceError, match=f"^{target}: the trace cannot be written"):
        write_trace(make_trace(), target)
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The message begins with the path that was asked for."""
    target = tmp_path / "none" / "t.jsonl"
    with pytest.raises(TraceError, match=f"^{target}: "):
        write_trace(make_trace(), target)


def test_an_old_file_is_replaced_whole(tmp_path: Path) -> None:
    """Nothing of a longer old file remains."""
    target = tmp_path / "t.jsonl"
    target.write_text("x" * 100_000)
    write_trace(make_trace(), target)
    assert read_traces([target]) == make_trace()
