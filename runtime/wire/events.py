"""Server-sent events, cut out of a stream that may be split anywhere.

A block is an event with the empty line that ends it, as the server wrote it: all blocks
and the rest, put together, are the stream.
"""

import re
from collections.abc import Iterator

from .errors import EventTooLong

_LONGEST_EVENT_BYTES = 16 << 20

# Atomic groups: a \r\n is one line's end, never two.
_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LONGEST_END_BYTES = 4


class SSEReader:
    """Cuts a stream into blocks; holds only what is not yet one."""

    def __init__(self, longest_bytes: int = _LONGEST_EVENT_BYTES) -> None:
        self._longest_bytes = longest_bytes
        self._held = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the blocks that *piece* completes.

        Raises EventTooLong where an event has more bytes than may be held.
        """
        held = self._held
        if not held and _is_block(piece):
            return [piece]
        scanned = max(0, len(held) - _LONGEST_END_BYTES)
        held += piece
        blocks: list[bytes] = []
        start = 0
        for end in self._ends(scanned):
            blocks.append(bytes(held[start:end]))
            start = end
        del held[:start]
        if len(held) > self._longest_bytes:
            raise EventTooLong(
                f"an event of the stream has more than {self._longest_bytes} bytes"
            )
        return blocks

    @property
    def rest(self) -> bytes:
        """What has come after the last block."""
        return bytes(self._held)

    def _ends(self, scanned: int) -> Iterator[int]:
        held = self._held
        if held.find(b"\r", scanned) >= 0:
            yield from [match.end() for match in _END.finditer(held, scanned)]
            return
        # Nearly all servers end lines with \n alone, and this is much quicker.
        found = held.find(b"\n\n", scanned)
        while found >= 0:
            yield found + 2
            found = held.find(b"\n\n", found + 2)


def _is_block(piece: bytes) -> bool:
    """Return whether *piece* is one event, as servers mostly write them."""
    if b"\r" in piece or not piece.endswith(b"\n\n"):
        return False
    return piece.find(b"\n\n") == len(piece) - 2


def event_data(block: bytes) -> bytes:
    r"""Return the data of a block; several lines of it are joined.

    >>> event_data(b"event: x\r\ndata: {\r\ndata: }\r\n\r\n")
    b'{\n}'
    """
    if block.startswith(b"data: ") and block.find(b"\n") == len(block) - 2:
        return block[6:-2]  # one line and nothing else, as in most streams
    return b"\n".join(_values(block, b"data"))


def event_name(block: bytes) -> bytes:
    r"""Return the name of a block's event; empty where it has none.

    >>> event_name(b": a comment\nevent: ping\ndata: {}\n\n")
    b'ping'
    """
    if b"\nevent" not in block and b"\r" not in block:  # in the first line or nowhere
        block = block.partition(b"\n")[0]
    names = list(_values(block, b"event"))
    return names[-1] if names else b""


def _values(block: bytes, field: bytes) -> Iterator[bytes]:
    # A pattern takes long over the large events that some servers send.
    lines = _LINE_END.split(block) if b"\r" in block else block.split(b"\n")
    for line in lines:
        name, _, value = line.partition(b":")
        if name == field:
            yield value.removeprefix(b" ")
