"""Writes a trace: the same trace gives the same bytes, and never half a file."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .errors import TraceError
from .schema import SessionRecord
from .trace import Trace, TraceSession

_ENCODER = msgspec.json.Encoder()


def write_trace(trace: Trace, path: Path | str) -> int:
    """Write *trace* to *path* and return the number of bytes.

    The file appears complete or not at all: it is written beside *path* and renamed.
    """
    target = Path(path)
    try:
        return _replace(target, trace)
    except OSError as error:
        raise TraceError.at(
            target, f"the trace cannot be written: {error.strerror or error}"
        ) from error


def encode_trace(trace: Trace) -> Iterator[bytes]:
    """Yield the lines of a trace: header, session records, then steps by session."""
    yield _line(trace.header)
    for session in trace.sessions:
        yield _line(_record(session))
    for step in trace.steps:
        yield _line(step)


def _replace(target: Path, trace: Trace) -> int:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            for line in encode_trace(trace):
                file.write(line)
            length_bytes = file.tell()
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return length_bytes


def _record(session: TraceSession) -> SessionRecord:
    return SessionRecord(
        session=session.id,
        parent=session.parent,
        spawned_by=session.spawned_by,
        arrival_ms=session.arrival_ms,
        class_name=session.class_name,
        blocking=session.blocking,
    )


def _line(record: msgspec.Struct) -> bytes:
    return _ENCODER.encode(record) + b"\n"
