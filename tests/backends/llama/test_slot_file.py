"""The slot file parser: a file that is not whole must never reach the engine."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvalet.backends.llama.slot_file import (
    BadSlotFile,
    parse,
    parse_token_ids,
    version_of,
)

from .slot_files import K_ROW, LAYERS, ROW_BYTES, V_ROW, slot_file


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_whole_file_is_read(transposed: int) -> None:
    """Tokens, streams, layers and the size of a row, V transposed or not."""
    content = parse(slot_file(transposed=transposed, sequence=9))
    assert content.token_ids.tolist() == [5, 6, 7]
    assert (content.streams, content.live, content.sequence) == (2, 1, 9)
    assert content.positions is None
    assert [run.row_bytes for run in content.shape.keys] == [K_ROW] * LAYERS
    assert [run.row_bytes for run in content.shape.values] == [V_ROW] * LAYERS
    assert content.shape.row_bytes == ROW_BYTES
    assert content.shape.transposed == bool(transposed)


def test_cells_may_be_in_any_order() -> None:
    """Which position each cell has is told."""
    content = parse(slot_file(cells=(2, 0, 1)))
    assert content.positions is not None
    assert content.positions.tolist() == [2, 0, 1]


def test_the_beginning_can_be_read_alone() -> None:
    """The token list and the version need nothing of what follows them."""
    data = slot_file()
    assert parse_token_ids(data[:50]).tolist() == [5, 6, 7]
    assert version_of(data[:12]) == 4
    assert version_of(slot_file(version=9)) == 9
    assert version_of(b"GGUF" + data[4:]) is None
    assert version_of(data[:11]) is None


@pytest.mark.parametrize("transposed", [0, 1])
def test_every_truncation_is_refused(transposed: int) -> None:
    """Cut at any byte, the file is refused: it would abort the engine."""
    whole = slot_file(transposed=transposed)
    for length in range(len(whole)):
        with pytest.raises(BadSlotFile):
            parse(whole[:length])


def test_a_tail_is_refused() -> None:
    """Bytes after the end are counted in the sentence."""
    with pytest.raises(BadSlotFile, match="2 bytes after its end"):
        parse(slot_file() + b"??")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (slot_file(magic=b"GGUF"), "magic 'ggsq'"),
        (slot_file(version=3), "version 3, only 4"),
        (slot_file(cells=(0, 1)), r"lists 3 tokens, its streams hold \[2\]"),
        (slot_file(cells=(0, 2, 3)), "not positions 0 to 2"),
        (slot_file(live=()), r"hold \[\]"),
        (slot_file(live=(0, 1)), r"hold \[3, 3\]"),
        (slot_file(owners=2), "more than one sequence"),
        (slot_file(transposed=7), "v_trans = 7"),
        (slot_file(layers=0), "no layers"),
    ],
)
def test_a_file_of_another_kind_is_refused(data: bytes, sentence: str) -> None:
    """What differs is named."""
    with pytest.raises(BadSlotFile, match=sentence):
        parse(data)


def test_a_token_list_with_media_is_refused() -> None:
    """A list that counts images is not plain text's."""
    data = bytearray(slot_file((5,)))
    data[12 + 4 * 4 : 12 + 5 * 4] = struct.pack("<i", 1)
    with pytest.raises(BadSlotFile, match="plain text"):
        parse(bytes(data))


@settings(deadline=None)
@given(at=st.integers(0, len(slot_file()) - 1), flip=st.integers(1, 255))
def test_a_flip_never_moves_the_end(at: int, flip: int) -> None:
    """A flipped byte is refused, or the file still ends where it says.

    Flips inside ids or rows are the checksum's to find.
    """
    damaged = bytearray(slot_file())
    damaged[at] ^= flip
    try:
        content = parse(bytes(damaged))
    except BadSlotFile:
        return
    assert len(content.token_ids) == 3


@settings(deadline=None)
@given(data=st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    """No bytes make the parser fail in any other way."""
    for noise in (data, slot_file()[:12] + data):
        with pytest.raises(BadSlotFile):
            parse(noise)
