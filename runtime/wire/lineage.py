"""Conversations told apart and found again by what they begin with.

A request repeats the whole conversation. Its lineage is one digest for the head (model,
system prompt, tools) and one for every message, each over all that came before it: two
requests share as many leading digests as they share messages.

What clients are known to change from turn to turn without changing the conversation is
left out: ``cache_control`` marks, which wander to the newest message, and the line with
which Claude Code bills, which carries a new checksum each time.

The digests are quick, not safe against forgery: keep those of one tenant to it.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import xxhash

from .json_values import is_list, is_object

_DIGEST_BYTES = 16
_BLOCK_CHARACTERS = 1024
_BLOCK_TOKENS = 256

_HEAD_FIELDS = ("model", "system", "instructions", "tools", "functions")
_MARK = b'"cache_control"'
_BILLING = "x-anthropic-billing-header:"

_sorted = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a request begins with: 16 bytes for its head, and for each item after it."""

    digests: bytes

    @property
    def count(self) -> int:
        """How many digests there are: one more than the request has items."""
        return len(self.digests) // _DIGEST_BYTES

    @property
    def head(self) -> bytes:
        """The digest of model, system prompt and tools."""
        return self.digests[:_DIGEST_BYTES]

    @property
    def tail(self) -> bytes:
        """The digest of the whole request."""
        return self.digests[-_DIGEST_BYTES:]

    def __getitem__(self, index: int) -> bytes:
        """Return digest *index*; -1 is the tail. Raises IndexError."""
        found = range(self.count)[index] * _DIGEST_BYTES
        return self.digests[found : found + _DIGEST_BYTES]

    def shared(self, other: "Lineage") -> int:
        """Return with how many equal digests both begin."""
        low, high = 0, min(self.count, other.count)
        # A digest is over all before it: where two are equal, so are all earlier ones.
        while low < high:
            middle = (low + high + 1) // 2
            if self[middle - 1] == other[middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low


def lineage(head: bytes, items: Iterable[bytes | msgspec.Raw]) -> Lineage:
    """Return the lineage of *items* after *head*."""
    rolling = xxhash.xxh3_128(head)
    digests = [rolling.digest()]
    for item in items:
        rolling.update(item)
        digests.append(rolling.digest())
    return Lineage(digests=b"".join(digests))


def plain_head(fields: Mapping[str, msgspec.Raw]) -> bytes:
    """Return what comes before the first message, as the client has spelled it."""
    nothing = msgspec.Raw(b"null")
    return b",".join([bytes(fields.get(name, nothing)) for name in _HEAD_FIELDS])


def canonical_head(fields: Mapping[str, msgspec.Raw]) -> bytes:
    """Return what comes before the first message, without what varies."""
    parts = [b"null"] * len(_HEAD_FIELDS)
    for place, name in enumerate(_HEAD_FIELDS):
        if name in fields:
            value: object = msgspec.json.decode(fields[name])
            if name == "system":
                value = _as_blocks(without_billing(value))
            parts[place] = _canonical(value)
    return b",".join(parts)


def canonical_items(items: Iterable[object]) -> Iterable[bytes]:
    """Yield *items* with sorted keys, without marks, with all content as blocks."""
    for item in items:
        if is_object(item) and isinstance(item.get("content"), str):
            # A mark can only stand on a block, so a text that gets one changes shape.
            yield _canonical({**item, "content": _as_blocks(item["content"])})
        else:
            yield _canonical(item)


def text_blocks(text: str) -> Iterable[bytes]:
    """Yield a prompt that is one text in blocks: a longer one shares all whole ones."""
    for start in range(0, len(text), _BLOCK_CHARACTERS):
        yield text[start : start + _BLOCK_CHARACTERS].encode()


def token_blocks(token_ids: list[int]) -> Iterable[bytes]:
    """Yield a prompt of token ids in blocks, as ``text_blocks`` does."""
    packed = array("q", token_ids)
    for start in range(0, len(packed), _BLOCK_TOKENS):
        yield packed[start : start + _BLOCK_TOKENS].tobytes()


def without_billing(system: object) -> object:
    """Return a system prompt without the line that Claude Code bills by.

    It is the first line of the text, or of a block that has nothing else.

    >>> without_billing("x-anthropic-billing-header: cch=1;\\nBe brief.")
    'Be brief.'
    """
    if isinstance(system, str) and system.startswith(_BILLING):
        return system.partition("\n")[2]
    if not is_list(system):
        return system
    return [block for block in map(_unbilled, system) if block is not None]


def _unbilled(block: object) -> object | None:
    if not is_object(block):
        return block
    text = block.get("text")
    if not isinstance(text, str):
        return block
    if not text.startswith(_BILLING):
        return block
    rest = text.partition("\n")[2]
    return {**block, "text": rest} if rest else None


def _as_blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _canonical(value: object) -> bytes:
    encoded = _sorted(value)
    # Few items are marked: looking for the mark costs less than walking all of them.
    return _sorted(_unmarked(value)) if _MARK in encoded else encoded


def _unmarked(value: object) -> object:
    if is_object(value):
        return {
            key: _unmarked(each)
            for key, each in value.items()
            if key != "cache_control"
        }
    if is_list(value):
        return [_unmarked(each) for each in value]
    return value
