"""Reads whatever holds a trace: files of our schema, foreign recordings, folders.

The format is told from the content of a file, never from its name. A file that was
named must be readable; in a folder, what is no trace is passed over.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import TraceUnreadable
from .importers.claude_code import ClaudeCodeImporter
from .importers.importer import Importer
from .importers.weka import WekaImporter
from .lines import Advance, first_lines, unreadable
from .merge import merge_traces
from .records import detects_records, read_records
from .trace import Trace

Progress = Callable[[int, int], None]
"""Told the bytes that have been read, and those to read in all."""

DEFAULT_IMPORTERS: tuple[Importer, ...] = (ClaudeCodeImporter(), WekaImporter())
"""What the reader knows besides ``kvalet.trace/1``."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A file and who reads it; None reads our own schema."""

    path: Path
    importer: Importer | None


def read_traces(
    paths: Sequence[Path | str],
    *,
    progress: Progress | None = None,
    importers: Sequence[Importer] = DEFAULT_IMPORTERS,
) -> Trace:
    """Read every path (file or folder) and merge all sessions into one trace.

    Raises TraceUnreadable where a path holds no trace, and TraceInvalid, with file,
    line and field, where a record breaks a rule.
    """
    found = _find([Path(path) for path in paths], importers)
    advance = _advance(found, progress)
    traces = [
        read_records(file.path, advance) for file in found if file.importer is None
    ]
    for importer in importers:
        own = [file.path for file in found if file.importer is importer]
        if own:
            traces.append(importer.read(own, advance))
    return merge_traces(traces)


def _find(paths: Sequence[Path], importers: Sequence[Importer]) -> list[_Found]:
    """List each readable file once, in the order of *paths* and sorted in folders."""
    if not paths:
        raise TraceUnreadable("no trace was named")
    found: dict[Path, _Found] = {}
    for path in paths:
        for file in _find_one(path, importers):
            found.setdefault(file.path.resolve(), file)
    return list(found.values())


def _find_one(path: Path, importers: Sequence[Importer]) -> list[_Found]:
    if not path.exists():
        raise TraceUnreadable.at(path, "there is no such file or folder")
    if path.is_dir():
        inside = [_detect(file, importers) for file in _files_below(path)]
        found = [file for file in inside if file is not None]
        if not found:
            raise TraceUnreadable.at(
                path,
                f"none of the {len(inside)} files in this folder holds a trace",
            )
        return found
    file = _detect(path, importers)
    if file is None:
        raise _unknown(path)
    return [file]


def _detect(path: Path, importers: Sequence[Importer]) -> _Found | None:
    lines = first_lines(path)
    if detects_records(lines):
        return _Found(path, None)
    for importer in importers:
        if importer.detects(lines):
            return _Found(path, importer)
    return None


def _unknown(path: Path) -> TraceUnreadable:
    lines = first_lines(path)
    if not lines:
        return TraceUnreadable.at(path, "the file is empty")
    return TraceUnreadable.at(
        path, "this is neither a kvalet trace nor a recording that is known", line=1
    )


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield regular files, sorted; hidden ones and hidden folders are left alone."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _advance(found: Sequence[_Found], progress: Progress | None) -> Advance:
    """Add up what was read, for a caller who wants sums."""
    if progress is None:
        return lambda length_bytes: None
    try:
        total_bytes = sum(file.path.stat().st_size for file in found)
    except OSError as error:
        raise unreadable(found[0].path, error) from error
    done_bytes = 0

    def advance(length_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += length_bytes
        progress(done_bytes, total_bytes)

    return advance
