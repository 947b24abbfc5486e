"""Reads files line by line, so that memory is bounded by the longest line."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from .errors import TraceUnreadable

Advance = Callable[[int], None]
"""Told how many more bytes have been read."""

SNIFFED_LINES = 32
"""Lines that decide on a format: Claude Code may open with many small records."""


def read_lines(path: Path, advance: Advance) -> Iterator[tuple[int, bytes]]:
    """Yield the number, from 1, and the content of each line that is not blank."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                advance(len(line))
                content = line.strip()
                if content:
                    yield number, content
    except OSError as error:
        raise unreadable(path, error) from error


def first_lines(path: Path) -> list[bytes]:
    """Return the first lines of a file, enough of them to tell its format."""
    return [line for _, line in islice(read_lines(path, _ignore), SNIFFED_LINES)]


def unreadable(path: Path, error: OSError) -> TraceUnreadable:
    """Say why the system does not let us read *path*."""
    reason = error.strerror or str(error)
    return TraceUnreadable.at(path, f"the file cannot be read: {reason}")


def _ignore(length_bytes: int) -> None:
    """Advance of a reader whose progress nobody watches."""
