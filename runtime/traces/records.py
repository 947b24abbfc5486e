"""Reads one ``kvalet.trace/1`` file, strictly: the first broken rule is an error.

The result is all that is kept; the file passes line by line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from .checks import Problem, family_problems, step_problems
from .errors import TraceInvalid, TraceUnreadable
from .explain import explain, not_json
from .lines import Advance, read_lines
from .schema import SCHEMA, Header, Record, SessionRecord, Step
from .trace import Trace, TraceSession

_DECODER = msgspec.json.Decoder(Record)


class _Probe(msgspec.Struct, frozen=True):
    """As much of a first line as tells whose it is."""

    type: str
    schema: object = None
    session: object = None
    step: object = None

    @property
    def is_ours(self) -> bool:
        """A header of any version, or a step that lost its header."""
        if self.type == "trace":
            return self.schema is not None
        return self.type == "step" and None not in (self.session, self.step)


_PROBE_DECODER = msgspec.json.Decoder(_Probe)


@dataclass(slots=True, eq=False)
class _Lane:
    """A session while its file is read, with the lines that its records stand on."""

    record: SessionRecord
    record_line: int | None = None
    steps: list[Step] = field(default_factory=list[Step])
    step_lines: list[int] = field(default_factory=list[int])


def detects_records(first_lines: Sequence[bytes]) -> bool:
    """Tell whether a file with these first lines claims to be a trace of ours."""
    return bool(first_lines) and _probe(first_lines[0]) is not None


def read_records(path: Path, advance: Advance) -> Trace:
    """Read and check one file."""
    lines = read_lines(path, advance)
    header = _header(path, lines)
    lanes: dict[str, _Lane] = {}
    for line, content in lines:
        record = _decode(path, line, content)
        if isinstance(record, Header):
            raise TraceInvalid.at(
                path, "a second header follows the first", line=line, field="type"
            )
        _add(path, line, record, lanes)
    sessions = _sessions(path, lanes)
    return Trace(header=header, sessions=tuple(sessions.values()))


def _header(path: Path, lines: Iterator[tuple[int, bytes]]) -> Header:
    line, content = next(lines, (0, b""))
    if not content:
        raise TraceUnreadable.at(path, "the file is empty")
    probe = _probe(content)
    if probe is not None and probe.type == "trace" and probe.schema != SCHEMA:
        raise TraceInvalid.at(
            path,
            f"{probe.schema!r} is not supported; this version reads {SCHEMA!r}",
            line=line,
            field="schema",
        )
    record = _decode(path, line, content)
    if not isinstance(record, Header):
        raise TraceInvalid.at(
            path, "a trace must open with its header", line=line, field="type"
        )
    return record


def _probe(line: bytes) -> _Probe | None:
    try:
        probe = _PROBE_DECODER.decode(line)
    except msgspec.DecodeError:
        return None
    return probe if probe.is_ours else None


def _decode(path: Path, line: int, content: bytes) -> Record:
    try:
        return _DECODER.decode(content)
    except msgspec.ValidationError as error:
        name, sentence = explain(content, error)
        raise TraceInvalid.at(path, sentence, line=line, field=name) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceInvalid.at(path, not_json(error), line=line) from error


def _add(
    path: Path, line: int, record: SessionRecord | Step, lanes: dict[str, _Lane]
) -> None:
    lane = lanes.setdefault(
        record.session, _Lane(SessionRecord(session=record.session))
    )
    if isinstance(record, SessionRecord):
        if lane.record_line is not None:
            raise TraceInvalid.at(
                path,
                f"session {record.session!r} has a record on line "
                f"{lane.record_line} already",
                line=line,
                field="session",
            )
        lane.record, lane.record_line = record, line
        return
    previous = lane.steps[-1] if lane.steps else None
    for problem in step_problems(record, previous):
        raise TraceInvalid.at(path, problem.sentence, line=line, field=problem.field)
    lane.steps.append(record)
    lane.step_lines.append(line)


def _sessions(path: Path, lanes: dict[str, _Lane]) -> dict[str, TraceSession]:
    if not lanes:
        raise TraceUnreadable.at(path, "the trace holds no session")
    for id, lane in lanes.items():
        if not lane.steps:
            raise TraceInvalid.at(
                path,
                f"session {id!r} has no step",
                line=lane.record_line,
                field="session",
            )
    sessions = {id: _session(lane) for id, lane in lanes.items()}
    for problem in family_problems(sessions):
        raise TraceInvalid.at(
            path,
            problem.sentence,
            line=_line_of(problem, lanes[problem.session]),
            field=problem.field,
        )
    return sessions


def _session(lane: _Lane) -> TraceSession:
    return TraceSession(
        id=lane.record.session,
        parent=lane.record.parent,
        spawned_by=lane.record.spawned_by,
        arrival_ms=lane.record.arrival_ms,
        class_name=lane.record.class_name,
        blocking=lane.record.blocking,
        steps=tuple(lane.steps),
    )


def _line_of(problem: Problem, lane: _Lane) -> int | None:
    if problem.step is None:
        return lane.record_line
    return lane.step_lines[problem.step]
