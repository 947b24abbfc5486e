"""The slot file parser: a file that is not whole must never reach the engine."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvalet.backends.llama.slot_file import BadSlotFile, parse

LAYERS = 2
K_ROW = 8
V_ROW = 6


def slot_file(
    token_ids: Sequence[int] = (5, 6, 7),
    *,
    magic: bytes = b"qsgg",
    version: int = 4,
    cells: Sequence[int] | None = None,
    streams: int = 2,
    live: Sequence[int] = (1,),
    transposed: int = 0,
    owners: int = 1,
) -> bytes:
    """Return a slot file as llama.cpp writes it, with the given deviations."""
    packed = [-1, 1, len(token_ids), *token_ids, 0]
    parts = [magic, struct.pack(f"<II{len(packed)}i", version, len(packed), *packed)]
    parts.append(struct.pack("<I", streams))
    for stream in range(streams):
        positions = range(len(token_ids)) if cells is None else cells
        parts.append(struct.pack("<I", len(positions) if stream in live else 0))
        if stream in live:
            parts.append(_stream(positions, transposed, owners))
    return b"".join(parts)


def _stream(positions: Sequence[int], transposed: int, owners: int) -> bytes:
    count = len(positions)
    parts = [struct.pack("<iIi", position, owners, 0) for position in positions]
    parts.append(struct.pack("<IIII", transposed, LAYERS, 0, 0))
    for _ in range(LAYERS):
        parts.append(struct.pack("<iQ", 1, K_ROW) + bytes(K_ROW * count))
    for _ in range(LAYERS):
        header = (
            struct.pack("<iII", 1, 2, V_ROW // 2)
            if transposed
            else struct.pack("<iQ", 1, V_ROW)
        )
        parts.append(header + bytes(V_ROW * count))
    return b"".join(parts)


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_whole_file_is_read(transposed: int) -> None:
    """Tokens, streams, layers and the size of a row, V transposed or not."""
    content = parse(slot_file(transposed=transposed))
    assert content.token_ids == [5, 6, 7]
    assert (content.streams, content.layers) == (2, LAYERS)
    assert content.row_bytes == LAYERS * (K_ROW + V_ROW)
    assert content.transposed == bool(transposed)


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
