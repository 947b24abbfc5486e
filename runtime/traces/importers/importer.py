"""The seam between the reader and foreign formats."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..lines import Advance
from ..trace import Trace


class Importer(Protocol):
    """Reads recordings of one foreign format.

    All files of a call come at once: a resumed session repeats records of an older
    file, and a subagent may lie in a file of its own.
    """

    @property
    def format(self) -> str:
        """Name of the format, as it stands in the header of the result."""
        ...

    def detects(self, first_lines: Sequence[bytes]) -> bool:
        """Tell whether a file with these first lines is of this format."""
        ...

    def read(self, paths: Sequence[Path], advance: Advance) -> Trace:
        """Read all files as one trace; raise TraceUnreadable where that is empty."""
        ...
