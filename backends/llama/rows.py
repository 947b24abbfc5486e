"""Slot files as rows of tokens: cut into blocks, and made of them again.

A slot file has the K rows of all tokens of layer 0, then of layer 1 and so on, then the
V rows, so all of it moves when a token is added. A block has all rows of some tokens,
token by token, and never changes again. Token ids, cells and headers are in no block:
they follow from the token ids, the head, and the slot that the file is for.

Works on files as ``slot_file`` describes them; rows that a file has transposed are
turned, so the blocks are the same either way.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt

from ...state_store import KVState, Payload, token_blocks
from ..errors import ImportRefused
from .layout import Cut
from .slot_file import (
    VERSION,
    BadSlotFile,
    Run,
    Shape,
    SlotFile,
    beginning,
    ending,
    parse,
    run_header,
)

# ggml's numbers of what KV state can be kept in.
_KINDS: Final = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    20: "iq4_nl",
    30: "bf16",
}

Bytes = npt.NDArray[np.uint8]


class Head(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a file has besides tokens and rows: its shape, and whose slot it was.

    With it alone a file is rebuilt byte for byte; for another slot, or an engine with
    another number of them, the last three are replaced.
    """

    shape: Shape
    streams: Annotated[int, msgspec.Meta(ge=1)]
    live: Annotated[int, msgspec.Meta(ge=0)]
    sequence: int


def head_of(file: SlotFile) -> Head:
    """Return the head of a parsed file."""
    return Head(
        shape=file.shape,
        streams=file.streams,
        live=file.live,
        sequence=file.sequence,
    )


def cut(
    data: Payload, file: SlotFile, blocks: Sequence[tuple[int, int]]
) -> list[memoryview]:
    """Copy the rows of each block's tokens out of *data*, whose parse is *file*.

    Each block is a buffer of its own. Nothing but these rows is read.
    """
    count = len(file.token_ids)
    source = np.frombuffer(data, np.uint8)
    runs = [
        _rows(source[start : start + count * run.row_bytes], run, count)
        for run, start in zip(file.shape.runs, file.starts, strict=True)
    ]
    order = None if file.positions is None else np.argsort(file.positions)
    row_bytes = file.shape.row_bytes
    payloads: list[memoryview] = []
    for first, end in blocks:
        cells = slice(first, end) if order is None else order[first:end]
        flat = np.empty((end - first) * row_bytes, np.uint8)
        block, at = flat.reshape(end - first, row_bytes), 0
        for run, rows in zip(file.shape.runs, runs, strict=True):
            target = block[:, at : at + run.row_bytes]
            target.reshape(_row_shape(run, end - first))[:] = rows[cells]
            at += run.row_bytes
        payloads.append(flat.data.toreadonly())
    return payloads


def splice(
    head: Head, token_ids: Sequence[int], payloads: Sequence[Payload]
) -> Iterator[Payload]:
    """Yield the file of *token_ids*, whose rows are in the *payloads*, piece by piece.

    A piece is valid until the next one is asked for. The payloads are blocks of
    consecutive tokens from the first to the last; the caller has checked their lengths.
    """
    shape, count = head.shape, len(token_ids)
    blocks = [
        np.frombuffer(payload, np.uint8).reshape(-1, shape.row_bytes)
        for payload in payloads
    ]
    yield beginning(
        token_ids,
        shape,
        streams=head.streams,
        live=head.live,
        sequence=head.sequence,
    )
    flat = np.empty(count * max(run.row_bytes for run in shape.runs), np.uint8)
    at = 0
    for run in shape.runs:
        yield run_header(run)
        piece = flat[: count * run.row_bytes]
        rows, first = _rows(piece, run, count), 0
        for block in blocks:
            end, source = first + len(block), block[:, at : at + run.row_bytes]
            rows[first:end] = source.reshape(_row_shape(run, len(block)))
            first = end
        at += run.row_bytes
        yield piece.data
    yield ending(streams=head.streams, live=head.live)


def _row_shape(run: Run, count: int) -> tuple[int, ...]:
    size = run.element_bytes
    return (count, run.row_bytes // size, size) if size else (count, run.row_bytes)


def _rows(flat: Bytes, run: Run, count: int) -> Bytes:
    """Return one run of a file by token, as a view."""
    size = run.element_bytes
    if not size:
        return flat.reshape(count, run.row_bytes)
    return flat.reshape(run.row_bytes // size, count, size).transpose(1, 0, 2)


class RowLayout:
    """Implements ``Layout`` for engines that write files of the known version.

    *shape* and *streams* are those of the files that this engine itself writes.
    """

    exports_rows = True

    def __init__(self, shape: Shape, streams: int) -> None:
        self._shape = shape
        self._streams = streams

    @property
    def name(self) -> str:
        """The file format and what numbers are kept in."""
        values = _kinds(self._shape.values)
        turned = ",transposed" if self._shape.transposed else ""
        return (
            f"llama-slot-file/{VERSION};k={_kinds(self._shape.keys)};v={values}{turned}"
        )

    def cut(self, data: Payload, token_ids: Sequence[int], first_token: int) -> Cut:
        """Cut out the rows from *first_token* on; raise BadSlotFile."""
        file = parse(data)
        if file.shape != self._shape:
            raise BadSlotFile("its layers are not those that the engine wrote before")
        if file.token_ids[: len(token_ids)].tolist() != list(token_ids):
            raise BadSlotFile(
                f"it holds {len(file.token_ids)} tokens that do not begin with the "
                f"{len(token_ids)} to be parked"
            )
        if not 0 <= first_token < len(token_ids):
            raise BadSlotFile(
                f"of {len(token_ids)} tokens none are left from {first_token} on"
            )
        blocks = token_blocks(first_token, len(token_ids))
        return Cut(
            head=msgspec.msgpack.encode(head_of(file)),
            ends=[end for _, end in blocks],
            payloads=cut(data, file, blocks),
        )

    def pieces(
        self, state: KVState, token_ids: Sequence[int], slot: int
    ) -> Iterator[Payload]:
        """Make the file for *slot* of this engine; raise ImportRefused."""
        manifest = state.manifest
        try:
            head = msgspec.msgpack.decode(manifest.head, type=Head)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ImportRefused(
                f"the head of state {manifest.key!r} can't be read: {error}"
            ) from error
        if head.shape != self._shape:
            raise ImportRefused(
                f"state {manifest.key!r} has {_sizes(head.shape)}, "
                f"the engine's own have {_sizes(self._shape)}"
            )
        for segment in manifest.segments:
            expected_bytes = segment.token_count * self._shape.row_bytes
            if not expected_bytes or segment.length_bytes != expected_bytes:
                raise ImportRefused(
                    f"state {manifest.key!r} has {segment.length_bytes} bytes for the "
                    f"{segment.token_count} tokens from {segment.first_token} on, "
                    f"not {expected_bytes}"
                )
        here = Head(shape=head.shape, streams=self._streams, live=slot, sequence=slot)
        return splice(here, token_ids, state.payloads)


def _kinds(runs: Sequence[Run]) -> str:
    return "+".join(sorted({_KINDS.get(run.kind, str(run.kind)) for run in runs}))


def _sizes(shape: Shape) -> str:
    return (
        f"rows of {shape.row_bytes} bytes in {len(shape.keys)} layers "
        f"(k={_kinds(shape.keys)}, v={_kinds(shape.values)})"
    )
