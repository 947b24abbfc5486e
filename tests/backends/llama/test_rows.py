"""Cutting slot files into rows, and making the same files of them again."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.backends import ImportRefused
from kvalet.backends.llama.rows import Head, RowLayout, cut, head_of, splice
from kvalet.backends.llama.slot_file import BadSlotFile, Run, parse
from kvalet.state_store import BLOCK_TOKENS, KVState, token_blocks

from .slot_files import LAYERS, ROW_BYTES, row_of, slot_file

TOKENS = st.lists(st.integers(0, 50_000), min_size=1, max_size=40)


def bytes_of(
    head: Head, token_ids: Sequence[int], blocks: Sequence[memoryview]
) -> bytes:
    """Return the whole spliced file."""
    file = bytearray()
    for piece in splice(head, token_ids, blocks):
        file += piece
    return bytes(file)


@given(
    token_ids=TOKENS,
    cuts=st.sets(st.integers(1, 39)),
    streams=st.integers(1, 4),
    live=st.integers(0, 3),
    sequence=st.integers(0, 200),
    transposed=st.integers(0, 1),
)
def test_a_spliced_file_is_the_file(
    token_ids: list[int],
    cuts: set[int],
    streams: int,
    live: int,
    sequence: int,
    transposed: int,
) -> None:
    """Wherever it is cut, whatever its slot, transposed or not: the same bytes."""
    data = slot_file(
        token_ids,
        streams=streams,
        live=(live % streams,),
        sequence=sequence,
        transposed=transposed,
    )
    inner = sorted(at for at in cuts if at < len(token_ids))
    blocks = list(pairwise([0, *inner, len(token_ids)]))
    file = parse(data)
    assert bytes_of(head_of(file), token_ids, cut(data, file, blocks)) == data


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_block_is_the_rows_of_its_tokens(transposed: int) -> None:
    """Token by token: the K of every layer, then the V of every layer."""
    token_ids = (9, 8, 7, 6)
    data = slot_file(token_ids, transposed=transposed)
    (block,) = cut(data, parse(data), [(1, 3)])
    expected = b"".join(
        row_of(token_ids[number], number, layer, part)
        for number in (1, 2)
        for part in "kv"
        for layer in range(LAYERS)
    )
    assert bytes(block) == expected


def test_every_block_is_a_buffer_of_its_own() -> None:
    """Nobody can write to it, and keeping one keeps nothing else."""
    data = slot_file(range(1000, 1300))
    blocks = cut(data, parse(data), token_blocks(0, 300))
    assert [block.nbytes for block in blocks] == [128 * ROW_BYTES] * 2 + [
        44 * ROW_BYTES
    ]
    assert all(block.readonly and block.contiguous for block in blocks)


@given(data=st.data(), transposed=st.integers(0, 1))
def test_cells_out_of_order_are_put_in_order(
    data: st.DataObject, transposed: int
) -> None:
    """Rows go by position, wherever in the cache the engine has put them."""
    token_ids = data.draw(TOKENS)
    cells = data.draw(st.permutations(range(len(token_ids))))
    plain = slot_file(token_ids, transposed=transposed)
    mixed = slot_file(token_ids, transposed=transposed, cells=cells)
    blocks = [(0, len(token_ids))]
    file = parse(mixed)
    assert cut(mixed, file, blocks) == cut(plain, parse(plain), blocks)


def layout(data: bytes | None = None) -> RowLayout:
    """Return the layout that an engine with two slots learns, from *data* or as is."""
    return RowLayout(parse(data or slot_file()).shape, 2)


def parked(
    token_ids: Sequence[int], *, first_token: int = 0, live: int = 1, streams: int = 2
) -> KVState:
    """Return the state of the tokens, from *first_token* on, out of slot *live*."""
    data = slot_file(token_ids, live=(live,), sequence=live, streams=streams)
    pieces = layout().cut(data, token_ids, first_token)
    return KVState.seal_segments(
        key="k",
        model="m",
        engine="e",
        layout=layout().name,
        head=pieces.head,
        token_ids=token_ids,
        ends=pieces.ends,
        payloads=pieces.payloads,
        first_token=first_token,
    )


def file_for(state: KVState, token_ids: Sequence[int], slot: int) -> bytes:
    """Return what an engine with two slots is given."""
    return b"".join(map(bytes, layout().pieces(state, token_ids, slot)))


@given(ends=st.lists(st.integers(1, 700), min_size=1, max_size=8, unique=True))
def test_increments_make_the_same_file(ends: list[int]) -> None:
    """However often only new rows were parked, from whichever slots of any engine."""
    token_ids = array("i", [number * 7919 % 50_000 for number in range(700)])
    ends.sort()
    state = parked(token_ids[: ends[0]])
    for number, (first, end) in enumerate(pairwise(ends)):
        more = parked(
            token_ids[:end], first_token=first, live=number % 3, streams=number % 3 + 1
        )
        assert more.manifest.continues(state.manifest)
        assert more.manifest.kv_bytes == (end - first) * ROW_BYTES
        state = more.behind(state)
    state.verify()
    held = token_ids[: ends[-1]]
    for slot in (0, 1):
        expected = slot_file(held, live=(slot,), sequence=slot)
        assert file_for(state, held, slot) == expected
    # The head of the last one says which file it was itself.
    head = msgspec.msgpack.decode(state.manifest.head, type=Head)
    own = slot_file(
        held, live=(head.live,), sequence=head.sequence, streams=head.streams
    )
    blocks = [memoryview(payload) for payload in state.payloads]
    assert bytes_of(head, held, blocks) == own


def test_a_leading_part_is_a_state_too() -> None:
    """Of what a slot holds, fewer tokens can be taken, and of a state whole blocks."""
    token_ids = range(2 * BLOCK_TOKENS + 10)
    pieces = layout().cut(slot_file(token_ids), token_ids[:-1], 0)
    assert pieces.ends == [BLOCK_TOKENS, 2 * BLOCK_TOKENS, len(token_ids) - 1]
    shorter = parked(token_ids).leading(BLOCK_TOKENS)
    expected = slot_file(token_ids[:BLOCK_TOKENS], live=(0,), sequence=0)
    assert file_for(shorter, token_ids[:BLOCK_TOKENS], 0) == expected


@pytest.mark.parametrize(
    ("token_ids", "first_token", "sentence"),
    [
        ((5, 6, 8), 0, "holds 3 tokens that do not begin with the 3"),
        ((5, 6, 7, 8), 0, "do not begin with the 4"),
        ((5, 6, 7), 3, "none are left from 3 on"),
        ((5, 6, 7), -1, "none are left from -1 on"),
    ],
)
def test_other_tokens_are_not_cut(
    token_ids: tuple[int, ...], first_token: int, sentence: str
) -> None:
    """The file's own list has to begin with the tokens, and rows have to be left."""
    with pytest.raises(BadSlotFile, match=sentence):
        layout().cut(slot_file(), token_ids, first_token)


def test_a_file_of_another_shape_is_not_cut() -> None:
    """What the engine writes must look like what it wrote when it started."""
    with pytest.raises(BadSlotFile, match="not those that the engine wrote"):
        layout().cut(slot_file(layers=3), (5, 6, 7), 0)


def test_the_name_says_how_numbers_are_kept() -> None:
    """Version, types, and whether V is transposed; not how many slots there are."""
    assert layout().name == "llama-slot-file/4;k=f16;v=f16"
    turned = layout(slot_file(transposed=1))
    assert turned.name == "llama-slot-file/4;k=f16;v=f16,transposed"
    assert layout(slot_file(streams=7)).name == layout().name


def with_shape(state: KVState, **changes: object) -> KVState:
    """Return *state* with a head that claims another shape."""
    head = msgspec.msgpack.decode(state.manifest.head, type=Head)
    shape = msgspec.structs.replace(head.shape, **changes)
    packed = msgspec.msgpack.encode(msgspec.structs.replace(head, shape=shape))
    return replace(state, manifest=replace(state.manifest, head=packed))


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": (Run(8, 8), Run(1, 8))},
        {"values": (Run(1, 8), Run(1, 4))},
        {"values": (Run(1, 6, 2), Run(1, 6, 2))},
        {"keys": (Run(1, 8),) * 3, "values": (Run(1, 4), Run(1, 4), Run(1, 4))},
        {"rotations": (64, 64)},
    ],
)
def test_a_foreign_shape_is_refused(changes: dict[str, object]) -> None:
    """Types, sizes, layers, rotation: rows mean something else then."""
    with pytest.raises(ImportRefused, match="the engine's own have rows of 28 bytes"):
        file_for(with_shape(parked((5, 6, 7)), **changes), (5, 6, 7), 0)


@given(head=st.binary(max_size=60))
def test_a_corrupt_head_is_refused(head: bytes) -> None:
    """Whatever its bytes are."""
    state = parked((5, 6, 7))
    state = replace(state, manifest=replace(state.manifest, head=head))
    with pytest.raises(ImportRefused, match="state 'k'"):
        file_for(state, (5, 6, 7), 0)


@given(
    at=st.integers(0, len(parked((5, 6)).manifest.head) - 1), flip=st.integers(1, 255)
)
def test_a_flip_in_the_head_changes_nothing(at: int, flip: int) -> None:
    """It is refused, or it was in what is replaced: the file is the right one."""
    state = parked((5, 6))
    head = bytearray(state.manifest.head)
    head[at] ^= flip
    state = replace(state, manifest=replace(state.manifest, head=bytes(head)))
    try:
        file = file_for(state, (5, 6), 0)
    except ImportRefused:
        return
    assert file == slot_file((5, 6), live=(0,), sequence=0)


@pytest.mark.parametrize("ends", [[2], [1, 3], [3, 3]])
def test_rows_of_another_length_are_refused(ends: list[int]) -> None:
    """Every segment has exactly its tokens' rows, and at least one."""
    data = bytes(ROW_BYTES)
    state = parked((5, 6, 7))
    head = state.manifest.head
    wrong = KVState.seal_segments(
        key="k",
        model="m",
        engine="e",
        layout=layout().name,
        head=head,
        token_ids=(5, 6, 7),
        ends=ends,
        payloads=[data * 3, b""][: len(ends)],
    )
    with pytest.raises(ImportRefused, match=r"bytes for the \d tokens"):
        file_for(wrong, (5, 6, 7), 0)
