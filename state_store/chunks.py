"""Content-defined chunks: what changed little is stored little of again.

For states whose rows nobody can tell apart. Where bytes are inserted, only the chunks
around them differ, since a chunk ends where the bytes before its end hash to a certain
pattern, and not at a certain offset. The same bytes are always cut alike.

The hash is of the eight bytes before an end: they times an odd constant, modulo 2^64,
whose upper bits every one of them has a part in (multiplicative hashing; Knuth, The Art
of Computer Programming 3, 6.4). A hash that rolls along finds about as much, but has to
be computed byte after byte, which Python can't do a hundred million times a second.

The end of a chunk is the first pattern at least ``MINIMUM_BYTES`` after its start, so a
chunk has 16 KiB on average: the minimum and, of random bytes, the pattern's interval.
"""

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from .state import Payload

MINIMUM_BYTES: Final = 8 * 1024
MAXIMUM_BYTES: Final = 64 * 1024

_WINDOW_BYTES: Final = 8
# Part of the format, as is all above: another one would cut the same bytes elsewhere.
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
# One hash in 8 Ki is below this.
_PATTERN: Final = np.uint64(2**64 // (8 * 1024))
# A stretch and its hashes stay in a core's own cache.
_STRETCH_BYTES: Final = 256 * 1024


def split(data: Payload) -> list[bytes]:
    """Return *data* in chunks, each a buffer of its own; the last one may be short.

    >>> data = bytes(200_000)
    >>> chunks = split(data)
    >>> b"".join(chunks) == data, len(chunks[0]) <= MAXIMUM_BYTES
    (True, True)
    """
    view = memoryview(data).cast("B")
    return [bytes(view[start:end]) for start, end in pairwise([0, *chunk_ends(view)])]


def chunk_ends(data: Payload) -> list[int]:
    """Return where the chunks of *data* end; nothing has no chunk."""
    if not data:
        return []
    patterns = _patterns(np.frombuffer(data, np.uint8))
    ends: list[int] = []
    start = 0
    while start < len(data):
        latest = min(start + MAXIMUM_BYTES, len(data))
        at = int(np.searchsorted(patterns, start + MINIMUM_BYTES))
        found = at < len(patterns) and patterns[at] < latest
        start = int(patterns[at]) if found else latest
        ends.append(start)
    return ends


def _patterns(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the offsets that a chunk may end at, in order."""
    found = [np.empty(0, np.int64)]
    for first in range(0, len(data), _STRETCH_BYTES):
        # A window may begin before the stretch.
        start = max(0, first - _WINDOW_BYTES + 1)
        stretch = data[start : first + _STRETCH_BYTES]
        for shift in range(min(_WINDOW_BYTES, len(stretch) - _WINDOW_BYTES + 1)):
            count = (len(stretch) - shift) // _WINDOW_BYTES
            side_by_side = stretch[shift : shift + count * _WINDOW_BYTES]
            hashes = side_by_side.copy().view("<u8")
            hashes *= _FACTOR
            windows = np.flatnonzero(hashes < _PATTERN)
            found.append((windows + 1) * _WINDOW_BYTES + (start + shift))
    return np.sort(np.concatenate(found))
