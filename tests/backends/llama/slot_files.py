"""Slot files as llama.cpp writes them, made without the code under test."""

import struct
from collections.abc import Sequence

LAYERS = 2
K_ROW = 8
V_ROW = 6
ROW_BYTES = LAYERS * (K_ROW + V_ROW)


def row_of(token_id: int, number: int, layer: int, part: str) -> bytes:
    """Return a row that no other token, layer or part has."""
    size = K_ROW if part == "k" else V_ROW
    text = f"{token_id}/{number}/{layer}{part}".encode()
    seed = int.from_bytes(text, "big") * 2654435761 % (1 << (8 * size))
    return seed.to_bytes(size, "little")


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
    sequence: int = 0,
    layers: int = LAYERS,
) -> bytes:
    """Return a slot file, with the given deviations from a plain one."""
    packed = [-1, 1, len(token_ids), *token_ids, 0]
    parts = [magic, struct.pack(f"<II{len(packed)}i", version, len(packed), *packed)]
    parts.append(struct.pack("<I", streams))
    positions = range(len(token_ids)) if cells is None else cells
    for stream in range(streams):
        parts.append(struct.pack("<I", len(positions) if stream in live else 0))
        if stream in live:
            for position in positions:
                parts.append(struct.pack("<iIi", position, owners, sequence))
            parts.append(struct.pack("<IIII", transposed, layers, 0, 0))
            parts += _runs(token_ids, positions, transposed, layers)
    return b"".join(parts)


def _runs(
    token_ids: Sequence[int], positions: Sequence[int], transposed: int, layers: int
) -> list[bytes]:
    def rows(layer: int, part: str) -> list[bytes]:
        ids = [token_ids[at] if at < len(token_ids) else 0 for at in positions]
        pairs = zip(ids, positions, strict=True)
        return [row_of(token_id, at, layer, part) for token_id, at in pairs]

    parts: list[bytes] = []
    for layer in range(layers):
        parts += [struct.pack("<iQ", 1, K_ROW), *rows(layer, "k")]
    for layer in range(layers):
        values = rows(layer, "v")
        if transposed:
            parts.append(struct.pack("<iII", 1, 2, V_ROW // 2))
            for value in range(0, V_ROW, 2):
                parts += [row[value : value + 2] for row in values]
        else:
            parts += [struct.pack("<iQ", 1, V_ROW), *values]
    return parts
