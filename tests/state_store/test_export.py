"""A state as a file: it comes back equal, and no other file passes for one."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvalet.state_store import KVState, StateCorrupt
from kvalet.state_store.export import read_state, write_state

from .states import corrupted, make_rows, make_state


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tokens=st.integers(1, 400), unstored=st.integers(0, 2**40), tenant=st.text())
def test_a_state_comes_back_equal(
    tmp_path: Path, tokens: int, unstored: int, tenant: str
) -> None:
    """Manifest and payloads, however many segments; the length is that of the file."""
    state = make_rows(f"{tenant}/s", range(tokens), unstored_bytes=unstored)
    path = tmp_path / "state"
    assert write_state(state, path) == path.stat().st_size
    assert read_state(path) == state


def test_a_large_state(tmp_path: Path) -> None:
    """Payloads of several MiB come back, each a buffer of its own."""
    state = make_state("s", os.urandom(5 << 20))
    write_state(state, tmp_path / "state")
    assert read_state(tmp_path / "state") == state


def test_it_is_its_owners_alone(tmp_path: Path) -> None:
    """The file has mode 0600 and begins with its schema."""
    write_state(make_state("s"), tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state").read_bytes().startswith(b"kvalet.state/1\n")


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    """Where writing fails, the file is as it was, and no other is left."""
    path = tmp_path / "state"
    write_state(make_state("s"), path)
    before = path.read_bytes()
    with pytest.raises(StateCorrupt):
        write_state(corrupted(make_state("s", b"other")), path)
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_state(make_state("s"), tmp_path / "folder")
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["folder", "state"]


def test_a_continuation_is_no_state(tmp_path: Path) -> None:
    """Rows that continue others aren't written: nobody could restore them."""
    with pytest.raises(StateCorrupt):
        write_state(make_rows("s", range(300), 128), tmp_path / "state")
    assert not os.listdir(tmp_path)


def whole(tmp_path: Path) -> tuple[Path, bytes]:
    """Return a path that a state was written to, and what is in there."""
    path = tmp_path / "state"
    write_state(make_state("s"), path)
    return path, path.read_bytes()


def test_every_cut_is_found(tmp_path: Path) -> None:
    """A file that lacks its end, or has more behind it, is no state."""
    path, data = whole(tmp_path)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(StateCorrupt, match=r"cut short|its manifest makes|is no"):
            read_state(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(StateCorrupt, match="where its manifest makes it"):
        read_state(path)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """A file that differs in one bit is no state."""
    path, data = whole(tmp_path)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(StateCorrupt):
            read_state(path)


@pytest.mark.parametrize("content", [b"", b"GGUF\3", b"kvalet.state/2\n" + bytes(99)])
def test_another_file_is_named(tmp_path: Path, content: bytes) -> None:
    """An empty or another file is refused by its name."""
    path = tmp_path / "state"
    path.write_bytes(content)
    with pytest.raises(StateCorrupt, match=f"{path} is no kvalet.state/1"):
        read_state(path)


def test_a_length_that_lies_takes_no_memory(tmp_path: Path) -> None:
    """A manifest said to have 2^60 bytes is cut short, not waited for."""
    path = tmp_path / "state"
    path.write_bytes(b"kvalet.state/1\n" + (2**60).to_bytes(8, "little") + bytes(50))
    with pytest.raises(StateCorrupt, match="cut short"):
        read_state(path)


def test_no_file(tmp_path: Path) -> None:
    """A file that isn't there is the system's error."""
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path / "state")


def test_what_was_parked_can_be_parked_again(tmp_path: Path) -> None:
    """A state that was read is an ordinary one, also its beginning."""
    state = make_rows("s", range(300))
    write_state(state, tmp_path / "state")
    again: KVState = read_state(tmp_path / "state")
    assert again.leading(128) == state.leading(128)
