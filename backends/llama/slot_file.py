"""A llama-server slot file, read and checked to the last byte.

llama.cpp aborts its process on a slot file that ends early, and takes one with flipped
bytes or a tail without a word. So a file is parsed here first: its token list, the rows
of every layer, and that it ends exactly where its own numbers say.

Layout (version 4, plain attention cache, little endian)::

    'ggsq'  version  n_packed  packed tokens: -1 1 n token… 0
    n_stream, then per stream: cell_count and, unless that is 0,
      per cell:  position  1  sequence
      v_trans  n_layer  n_rot_k  n_rot_v
      per layer: type  row_bytes(u64)  K rows
      per layer: type  row_bytes(u64)  V rows          (v_trans = 0)
              or type  element_bytes  n_values  V      (v_trans = 1)
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from ...state_store import Payload

VERSION: Final = 4
_MAGIC: Final = 0x67677371  # 'ggsq'
_CELL_BYTES: Final = 12
_TOKEN_ID_BYTES: Final = 4
_HEADERS_BYTES: Final = 64 * 1024  # more than any model's layers need
_U32: Final = struct.Struct("<I")
_HEADER: Final = struct.Struct("<III")
_STREAM: Final = struct.Struct("<IIII")
_ROWS: Final = struct.Struct("<iQ")
_COLUMNS: Final = struct.Struct("<iII")

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Size = Annotated[int, msgspec.Meta(gt=0)]


class BadSlotFile(ValueError):
    """The bytes are not a whole slot file; the message is a sentence."""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """One layer's K or V: the numbers' type, and the bytes that a token has there.

    In a file whose V is transposed the values of one token lie apart, ``element_bytes``
    each; otherwise that is 0, and they lie together.
    """

    kind: int
    row_bytes: _Size
    element_bytes: _Count = 0


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """What is alike in all slot files of one engine: its layers' rows, K before V."""

    rotations: tuple[_Count, _Count]
    keys: Annotated[tuple[Run, ...], msgspec.Meta(min_length=1)]
    values: tuple[Run, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All rows in the order of the file."""
        return self.keys + self.values

    @property
    def row_bytes(self) -> int:
        """What one token takes in all layers together."""
        return sum(run.row_bytes for run in self.runs)

    @property
    def transposed(self) -> bool:
        """Whether the values of one token's V lie apart."""
        return any(run.element_bytes for run in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFile:
    """What a slot file holds: whose rows, in which shape, and where.

    ``positions`` are the cells' when they are not 0, 1, 2 …; ``starts`` are the offsets
    of the runs. ``sequence`` is what the cells say that they belong to.
    """

    token_ids: "array[int]" = field(repr=False)
    streams: int
    live: int
    sequence: int
    shape: Shape
    positions: "array[int] | None" = field(repr=False)
    starts: tuple[int, ...] = field(repr=False)


def estimated_bytes(tokens: int, bytes_per_token: int) -> int:
    """Return how long the slot file of so many tokens is at most."""
    per_token = bytes_per_token + _CELL_BYTES + _TOKEN_ID_BYTES
    return tokens * per_token + _HEADERS_BYTES


def listing_bytes(tokens: int) -> int:
    """Return how far the list of so many tokens reaches."""
    return _HEADER.size + (tokens + 4) * _TOKEN_ID_BYTES


def parse(data: Payload) -> SlotFile:
    """Check *data* from the first byte to the last; raise BadSlotFile.

    Only headers, tokens and cells are looked at, so a mapped file's rows are not read.
    """
    cursor = _Cursor(memoryview(data).cast("B"))
    token_ids = _read_tokens(cursor)
    (streams,) = cursor.take(_U32)
    live: dict[int, _Stream] = {}
    for number in range(streams):
        (cells,) = cursor.take(_U32)
        if cells:
            live[number] = _read_stream(cursor, cells)
    if cursor.left:
        raise BadSlotFile(f"the slot file has {cursor.left} bytes after its end")
    counts = [stream.cells for stream in live.values()]
    if counts != [len(token_ids)]:
        raise BadSlotFile(
            f"the slot file lists {len(token_ids)} tokens, its streams hold {counts}"
        )
    ((number, stream),) = live.items()
    return SlotFile(
        token_ids=token_ids,
        streams=streams,
        live=number,
        sequence=stream.sequence,
        shape=stream.shape,
        positions=stream.positions,
        starts=stream.starts,
    )


def parse_token_ids(data: Payload) -> "array[int]":
    """Return the tokens listed at the beginning of *data*; raise BadSlotFile."""
    return _read_tokens(_Cursor(memoryview(data).cast("B")))


def version_of(data: Payload) -> int | None:
    """Return the version of the slot file in *data*; None if it is none."""
    try:
        magic, version, _ = _Cursor(memoryview(data).cast("B")).take(_HEADER)
    except BadSlotFile:
        return None
    return version if magic == _MAGIC else None


def beginning(
    token_ids: Sequence[int], shape: Shape, *, streams: int, live: int, sequence: int
) -> bytes:
    """Return a file's bytes up to the first run's own header."""
    count = len(token_ids)
    packed = array("i", (-1, 1, count, *token_ids, 0))
    cells = array("i", bytes(count * _CELL_BYTES))
    cells[0::3] = array("i", range(count))
    cells[1::3] = array("i", [1]) * count
    cells[2::3] = array("i", [sequence]) * count
    return b"".join(
        (
            _HEADER.pack(_MAGIC, VERSION, len(packed)),
            packed.tobytes(),
            _U32.pack(streams),
            bytes(_U32.size * live),
            _U32.pack(count),
            cells.tobytes(),
            _STREAM.pack(shape.transposed, len(shape.keys), *shape.rotations),
        )
    )


def run_header(run: Run) -> bytes:
    """Return the bytes before a run."""
    if run.element_bytes:
        values = run.row_bytes // run.element_bytes
        return _COLUMNS.pack(run.kind, run.element_bytes, values)
    return _ROWS.pack(run.kind, run.row_bytes)


def ending(*, streams: int, live: int) -> bytes:
    """Return a file's bytes behind the last run: the streams that are empty."""
    return bytes(_U32.size * (streams - live - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    cells: int
    sequence: int
    positions: "array[int] | None"
    shape: Shape
    starts: tuple[int, ...]


class _Cursor:
    """A place in the file that cannot move past its end."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def skip(self, length: int) -> int:
        if length > self.left:
            raise BadSlotFile(
                f"the slot file ends at byte {len(self._data)}, "
                f"{length - self.left} bytes early"
            )
        start = self._at
        self._at += length
        return start

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack_from(self._data, self.skip(layout.size))

    def integers(self, count: int) -> "array[int]":
        start = self.skip(4 * count)
        numbers = array("i")
        numbers.frombytes(self._data[start : self._at])
        return numbers


def _read_tokens(cursor: _Cursor) -> "array[int]":
    magic, version, count = cursor.take(_HEADER)
    if magic != _MAGIC:
        raise BadSlotFile("the slot file does not start with the magic 'ggsq'")
    if version != VERSION:
        raise BadSlotFile(
            f"the slot file has version {version}, only {VERSION} is known"
        )
    packed = cursor.integers(count)
    # -1 and 1 say "packed, first version"; the last number counts images and the like.
    tokens = packed[2] if count > 2 else -1
    if count != tokens + 4 or packed[0] != -1 or packed[1] != 1 or packed[-1]:
        raise BadSlotFile("the token list of the slot file is not plain text's")
    return packed[3:-1]


def _read_stream(cursor: _Cursor, cells: int) -> _Stream:
    meta = cursor.integers(cells * _CELL_BYTES // 4)
    if meta[1::3] != array("i", [1]) * cells or meta[2::3] != meta[2:3] * cells:
        raise BadSlotFile("a cell of the slot file belongs to more than one sequence")
    positions, in_order = meta[0::3], array("i", range(cells))
    if positions != in_order and sorted(positions) != in_order.tolist():
        raise BadSlotFile(
            f"the cells of the slot file are not positions 0 to {cells - 1}"
        )
    transposed, layers, *rotations = cursor.take(_STREAM)
    if transposed > 1:
        raise BadSlotFile(f"the slot file says v_trans = {transposed}, not 0 or 1")
    if not layers:
        raise BadSlotFile("the slot file has no layers")
    keys = [_read_run(cursor, cells) for _ in range(layers)]
    read_values = _read_columns if transposed else _read_run
    values = [read_values(cursor, cells) for _ in range(layers)]
    return _Stream(
        cells=cells,
        sequence=meta[2],
        positions=None if positions == in_order else positions,
        shape=Shape(
            rotations=(rotations[0], rotations[1]),
            keys=tuple(run for run, _ in keys),
            values=tuple(run for run, _ in values),
        ),
        starts=tuple(start for _, start in keys + values),
    )


def _read_run(cursor: _Cursor, cells: int) -> tuple[Run, int]:
    kind, row_bytes = cursor.take(_ROWS)
    if not row_bytes:
        raise BadSlotFile("the slot file has a layer without rows")
    return Run(kind, row_bytes), cursor.skip(cells * row_bytes)


def _read_columns(cursor: _Cursor, cells: int) -> tuple[Run, int]:
    kind, element_bytes, values = cursor.take(_COLUMNS)
    row_bytes = element_bytes * values
    if not row_bytes:
        raise BadSlotFile("the slot file has a layer without columns")
    return Run(kind, row_bytes, element_bytes), cursor.skip(cells * row_bytes)
