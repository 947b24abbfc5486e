"""Memory for payloads on their way in or out, which costs nothing until it is used."""

import mmap
from typing import Final

_HUGE_PAGE_BYTES: Final = 2 << 20


def make_room(length_bytes: int) -> memoryview:
    """Return a buffer of its own that can be written to.

    A large one comes from the system untouched, in huge pages where it has them:
    filling it with zeros would hold the interpreter, and with it the event loop, for
    half a millisecond per MiB, and small pages take longer than encrypting them.

        >>> len(make_room(3_000_000)), len(make_room(0))
        (3000000, 0)
    """
    if length_bytes < _HUGE_PAGE_BYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return memoryview(bytearray(length_bytes))
    pages = -(-length_bytes // _HUGE_PAGE_BYTES)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        room = mmap.mmap(-1, pages * _HUGE_PAGE_BYTES, flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            whole_bytes = length_bytes // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
            room.madvise(mmap.MADV_HUGEPAGE, 0, whole_bytes)
    except OSError:
        return memoryview(bytearray(length_bytes))
    return memoryview(room)[:length_bytes]
