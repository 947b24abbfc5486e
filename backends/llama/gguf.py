"""The header of a GGUF file: what a model is and how much KV state a token takes.

Only the key-value section is read, up to the tensors, and only the few keys that the
backend decides by are kept. Nothing here trusts the file: every length is compared with
what is left of it.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_COUNT: Final = struct.Struct("<Q")
_TYPE: Final = struct.Struct("<I")
# Per-layer values are short arrays; vocabularies are long ones and are skipped.
_LONGEST_KEPT_ARRAY: Final = 1024

Value = str | int | float | bool | list[int]


class NotGGUF(ValueError):
    """The file is not a GGUF file that can be read; the message is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHeader:
    """What the header of a model file says, as far as scheduling needs it.

    ``kv_values_per_token`` counts the numbers in one token's K and V rows, all layers
    together.
    """

    architecture: str
    name: str
    context_tokens: int
    layers: int
    kv_values_per_token: int

    def bytes_per_token(self, value_bytes: float = 2.0) -> int:
        """Return the size of one token's KV rows; two bytes a value are f16."""
        return round(self.kv_values_per_token * value_bytes)


def read_header(path: Path) -> ModelHeader:
    """Read the header of the model file at *path*; raise NotGGUF or OSError."""
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise NotGGUF(f"{path} is not a GGUF file: it does not start with 'GGUF'")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _model_header(_Reader(data).key_values())
            except NotGGUF as error:
                raise NotGGUF(f"{path} is not a usable GGUF file: {error}") from None


class _Reader:
    """Walks over the key-value section, which has no index."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(_MAGIC)

    def key_values(self) -> dict[str, Value]:
        version = self._integer(_TYPE)
        if version not in _VERSIONS:
            raise NotGGUF(f"its version is {version}, known are 2 and 3")
        self._integer(_COUNT)  # tensors, which follow and are not read
        found: dict[str, Value] = {}
        for _ in range(self._integer(_COUNT)):
            key = self._string()
            value = self._value(self._integer(_TYPE))
            if value is not None:
                found[key] = value
        return found

    def _take(self, length: int) -> int:
        start = self._at
        if length > len(self._data) - start:
            raise NotGGUF(f"it ends inside its header, at byte {len(self._data)}")
        self._at += length
        return start

    def _scalar(self, layout: struct.Struct) -> int | float | bool:
        value: int | float | bool = layout.unpack_from(
            self._data, self._take(layout.size)
        )[0]
        return value

    def _integer(self, layout: struct.Struct) -> int:
        return int(self._scalar(layout))

    def _string(self) -> str:
        length = self._integer(_COUNT)
        start = self._take(length)
        return self._data[start : start + length].decode("utf-8", "replace")

    def _value(self, kind: int) -> Value | None:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._integer(_TYPE), self._integer(_COUNT))
        if kind not in _SCALARS:
            raise NotGGUF(f"it has a value of unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[int] | None:
        if kind in _SCALARS and count > _LONGEST_KEPT_ARRAY:
            self._take(_SCALARS[kind].size * count)
            return None
        if kind in _SCALARS:
            return [self._integer(_SCALARS[kind]) for _ in range(count)]
        for _ in range(count):
            self._value(kind)
        return None


def _model_header(found: dict[str, Value]) -> ModelHeader:
    architecture = found.get("general.architecture")
    if not isinstance(architecture, str):
        raise NotGGUF("it names no architecture")

    def number(name: str) -> int | None:
        value = found.get(f"{architecture}.{name}")
        return int(value) if isinstance(value, int) else None

    def required(name: str) -> int:
        value = number(name)
        if value is None:
            raise NotGGUF(f"it has no {architecture}.{name}")
        return value

    layers = required("block_count")
    heads = found.get(f"{architecture}.attention.head_count")
    kv_heads = found.get(f"{architecture}.attention.head_count_kv", heads)
    key_length = number("attention.key_length")
    value_length = number("attention.value_length")
    if key_length is None or value_length is None:
        head_count = _largest(heads)
        if head_count == 0:
            raise NotGGUF(f"it has no {architecture}.attention.head_count")
        head_length = required("embedding_length") // head_count
        key_length = head_length if key_length is None else key_length
        value_length = head_length if value_length is None else value_length
    return ModelHeader(
        architecture=architecture,
        name=str(found.get("general.name", "")),
        context_tokens=required("context_length"),
        layers=layers,
        kv_values_per_token=_over_layers(kv_heads, layers)
        * (key_length + value_length),
    )


def _largest(heads: Value | None) -> int:
    if isinstance(heads, list):
        return max(heads, default=0)
    return heads if isinstance(heads, int) else 0


def _over_layers(kv_heads: Value | None, layers: int) -> int:
    if isinstance(kv_heads, list):
        return sum(kv_heads)
    return kv_heads * layers if isinstance(kv_heads, int) else 0
