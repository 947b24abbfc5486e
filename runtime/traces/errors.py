"""What reading, writing or generating a trace raises.

    TraceError
    + TraceUnreadable   no such file, nothing in it, or no format that is known
    + TraceInvalid      a record says something that cannot be

Every message is one sentence, preceded by ``file:line: field:`` as far as they are
known, so that the person who wrote the file can open it at the right place.
"""

from pathlib import Path
from typing import Self


class TraceError(Exception):
    """Root of everything that a trace raises."""

    @classmethod
    def at(
        cls,
        path: Path | str | None,
        sentence: str,
        *,
        line: int | None = None,
        field: str | None = None,
    ) -> Self:
        """Build the error whose message is ``path:line: field: sentence``."""
        place = "" if path is None else str(path)
        if line is not None:
            place += f":{line}"
        return cls(": ".join(part for part in (place, field, sentence) if part))


class TraceUnreadable(TraceError):
    """No such file, an empty one, or one in no format that is known."""


class TraceInvalid(TraceError):
    """A record breaks a rule of its schema."""
