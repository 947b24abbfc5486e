"""Files, folders and merges: whatever holds a trace is found."""

from pathlib import Path

import pytest

from kvalet.runtime.traces import TraceError, merge_traces, read_traces, write_trace

from .builders import (
    HEADER,
    make_family,
    make_session,
    make_step,
    make_trace,
    step_line,
    write_lines,
)
from .importers.claude_log import ClaudeLog


def test_no_path_is_an_error() -> None:
    """Reading nothing would silently give an empty trace."""
    with pytest.raises(TraceError, match="no trace was named"):
        read_traces([])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The message says which path is not there."""
    path = tmp_path / "none.jsonl"
    with pytest.raises(TraceError, match=f"^{path}: there is no such file"):
        read_traces([path])


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    """Blank lines alone count as empty."""
    path = write_lines(tmp_path / "e.jsonl", "", "")
    with pytest.raises(TraceError, match=f"^{path}: the file is empty"):
        read_traces([path])


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    """A named file in no known format is an error, with a place to look at."""
    path = write_lines(tmp_path / "x.jsonl", '{"hello": 1}')
    with pytest.raises(TraceError, match=f"^{path}:1: this is neither"):
        read_traces([path])


def test_a_folder_without_a_trace_is_named(tmp_path: Path) -> None:
    """The message says how many files were looked at in vain."""
    write_lines(tmp_path / "notes.txt", "hello")
    with pytest.raises(TraceError, match="none of the 1 files in this folder"):
        read_traces([tmp_path])


def test_a_folder_is_searched_for_both_formats(tmp_path: Path) -> None:
    """Content decides, not names; other and hidden files are passed over."""
    (tmp_path / "deep").mkdir()
    (tmp_path / ".hidden").mkdir()
    write_trace(make_trace(), tmp_path / "deep" / "trace.txt")
    write_trace(make_trace(), tmp_path / ".hidden" / "trace.jsonl")
    log = ClaudeLog()
    log.user("hi")
    log.assistant(text="hello")
    log.write(tmp_path / "b.log")
    write_lines(tmp_path / "notes.md", "hello")
    trace = read_traces([tmp_path])
    assert len(trace.sessions) == 2
    assert trace.header.source.format == "test+claude-code"


def test_the_same_file_is_read_once(tmp_path: Path) -> None:
    """A file that is named, and lies in a named folder, does not count twice."""
    path = tmp_path / "t.jsonl"
    write_trace(make_trace(), path)
    assert len(read_traces([path, tmp_path, path]).sessions) == 1


def test_merged_sessions_have_unique_ids_and_keep_their_kin() -> None:
    """References follow when a session has to take another name."""
    merged = merge_traces([make_family(), make_family()])
    assert [session.id for session in merged.sessions] == ["a", "b", "a~2", "b~2"]
    child = merged.session("b~2")
    assert child.parent == "a~2"
    assert {step.session for step in child.steps} == {"b~2"}
    assert [tool.child for tool in merged.session("a~2").tools] == ["b~2"]
    assert merged.children("a~2") == (child,)


def test_dependencies_follow_a_new_name() -> None:
    """A step that waits for another session waits for the same one."""
    waiting = make_session("c", steps=(make_step(0, "c", deps=("a/1",)),))
    trace = make_trace(make_session("a"), waiting)
    merged = merge_traces([trace, trace])
    (step,) = merged.session("c~2").steps
    assert step.deps == ("a~2/1",)


def test_a_new_name_does_not_take_one_that_is_used() -> None:
    """A session may be called a~2 from the start."""
    first = make_trace(make_session("a"))
    second = make_trace(make_session("a"), make_session("a~2"))
    ids = [session.id for session in merge_traces([first, second]).sessions]
    assert len(set(ids)) == 3


def test_progress_reaches_the_whole(tmp_path: Path) -> None:
    """The callback ends at the size of all files, and never goes back."""
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        write_trace(make_trace(), path)
    seen: list[tuple[int, int]] = []
    read_traces(paths, progress=lambda done, total: seen.append((done, total)))
    total_bytes = sum(path.stat().st_size for path in paths)
    assert seen[-1] == (total_bytes, total_bytes)
    assert seen == sorted(seen)


def test_an_error_in_a_folder_names_the_file(tmp_path: Path) -> None:
    """A file that claims to be a trace is not passed over when it is wrong."""
    write_trace(make_trace(), tmp_path / "a.jsonl")
    bad = write_lines(tmp_path / "b.jsonl", HEADER, step_line(3))
    with pytest.raises(TraceError, match=f"^{bad}:2: step:"):
        read_traces([tmp_path])
