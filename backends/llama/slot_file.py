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
from dataclasses import dataclass
from typing import Final

FORMAT: Final = "llama-slot-file/4"
_MAGIC: Final = 0x67677371  # 'ggsq'
_VERSION: Final = 4
_CELL_BYTES: Final = 12
_TOKEN_ID_BYTES: Final = 4
_HEADERS_BYTES: Final = 64 * 1024  # more than any model's layers need
_U32: Final = struct.Struct("<I")
_HEADER: Final = struct.Struct("<III")
_STREAM: Final = struct.Struct("<IIII")
_ROWS: Final = struct.Struct("<iQ")
_COLUMNS: Final = struct.Struct("<iII")


class BadSlotFile(ValueError):
    """The bytes are not a whole slot file; the message is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFile:
    """What a slot file holds: whose rows, and in which shape."""

    token_ids: list[int]
    streams: int
    layers: int
    row_bytes: int
    transposed: bool


def estimated_bytes(tokens: int, bytes_per_token: int) -> int:
    """Return how long the slot file of so many tokens is at most."""
    per_token = bytes_per_token + _CELL_BYTES + _TOKEN_ID_BYTES
    return tokens * per_token + _HEADERS_BYTES


def parse(data: bytes | memoryview) -> SlotFile:
    """Check *data* from the first byte to the last; raise BadSlotFile."""
    cursor = _Cursor(memoryview(data).cast("B"))
    magic, version, packed = cursor.take(_HEADER)
    if magic != _MAGIC:
        raise BadSlotFile("the slot file does not start with the magic 'ggsq'")
    if version != _VERSION:
        raise BadSlotFile(
            f"the slot file has version {version}, only {_VERSION} is known"
        )
    token_ids = _unpack_tokens(cursor.integers(packed))
    (streams,) = cursor.take(_U32)
    live: list[_Stream] = []
    for _ in range(streams):
        (cells,) = cursor.take(_U32)
        if cells:
            live.append(_read_stream(cursor, cells))
    if cursor.left:
        raise BadSlotFile(f"the slot file has {cursor.left} bytes after its end")
    if len(live) != 1 or live[0].cells != len(token_ids):
        counts = [stream.cells for stream in live]
        raise BadSlotFile(
            f"the slot file lists {len(token_ids)} tokens, its streams hold {counts}"
        )
    return SlotFile(
        token_ids=token_ids,
        streams=streams,
        layers=live[0].layers,
        row_bytes=live[0].row_bytes,
        transposed=live[0].transposed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    cells: int
    layers: int
    row_bytes: int
    transposed: bool


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

    def integers(self, count: int) -> list[int]:
        start = self.skip(4 * count)
        numbers = array("i")
        numbers.frombytes(self._data[start : self._at])
        return numbers.tolist()


def _unpack_tokens(packed: list[int]) -> list[int]:
    # -1 and 1 say "packed, first version"; the last number counts images and the like.
    count = packed[2] if len(packed) > 2 else -1
    if len(packed) != count + 4 or packed[0] != -1 or packed[1] != 1 or packed[-1]:
        raise BadSlotFile("the token list of the slot file is not plain text's")
    return packed[3:-1]


def _read_stream(cursor: _Cursor, cells: int) -> _Stream:
    meta = cursor.integers(cells * _CELL_BYTES // 4)
    if any(owners != 1 for owners in meta[1::3]):
        raise BadSlotFile("a cell of the slot file belongs to more than one sequence")
    if sorted(meta[0::3]) != list(range(cells)):
        raise BadSlotFile(
            f"the cells of the slot file are not positions 0 to {cells - 1}"
        )
    transposed, layers, _, _ = cursor.take(_STREAM)
    if transposed > 1:
        raise BadSlotFile(f"the slot file says v_trans = {transposed}, not 0 or 1")
    row_bytes = 0
    for _ in range(layers):
        row_bytes += _skip_rows(cursor, cells)
    for _ in range(layers):
        row_bytes += (_skip_columns if transposed else _skip_rows)(cursor, cells)
    return _Stream(
        cells=cells, layers=layers, row_bytes=row_bytes, transposed=bool(transposed)
    )


def _skip_rows(cursor: _Cursor, cells: int) -> int:
    _, row_bytes = cursor.take(_ROWS)
    cursor.skip(cells * row_bytes)
    return row_bytes


def _skip_columns(cursor: _Cursor, cells: int) -> int:
    _, element_bytes, values = cursor.take(_COLUMNS)
    cursor.skip(cells * element_bytes * values)
    return element_bytes * values
