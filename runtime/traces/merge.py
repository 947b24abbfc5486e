"""Joins traces into one in which every session id is unique.

A session keeps its id where it can; a later one of the same name becomes ``name~2``.
References (parents, spawned children, dependencies) follow. Each trace keeps its own
origin of time, so that traces recorded on different days overlap when merged.
"""

from collections.abc import Mapping, Sequence

import msgspec

from .schema import SCHEMA, Header, Source, Step, Tool
from .trace import Trace, TraceSession


def merge_traces(traces: Sequence[Trace]) -> Trace:
    """Return one trace of all sessions; one trace alone comes back as it is."""
    if len(traces) == 1:
        return traces[0]
    taken: set[str] = set()
    sessions: list[TraceSession] = []
    for trace in traces:
        names = _free_names(trace, taken)
        taken.update(names.values())
        sessions.extend(_renamed(session, names) for session in trace.sessions)
    header = _merged_header([trace.header.source for trace in traces])
    return Trace(header=header, sessions=tuple(sessions))


def _free_names(trace: Trace, taken: set[str]) -> dict[str, str]:
    """Map each id to one that is neither in *taken* nor another id of *trace*."""
    own = dict.fromkeys(session.id for session in trace.sessions)
    names: dict[str, str] = {}
    for id in own:
        name, number = id, 1
        while name in taken or (name != id and name in own):
            number += 1
            name = f"{id}~{number}"
        names[id] = name
    return names


def _renamed(session: TraceSession, names: Mapping[str, str]) -> TraceSession:
    if all(id == name for id, name in names.items()):
        return session
    return TraceSession(
        id=names[session.id],
        parent=None if session.parent is None else names[session.parent],
        spawned_by=session.spawned_by,
        arrival_ms=session.arrival_ms,
        class_name=session.class_name,
        blocking=session.blocking,
        steps=tuple(_renamed_step(step, names) for step in session.steps),
    )


def _renamed_step(step: Step, names: Mapping[str, str]) -> Step:
    return msgspec.structs.replace(
        step,
        session=names[step.session],
        deps=tuple(_renamed_dependency(dependency, names) for dependency in step.deps),
        tools=tuple(_renamed_tool(tool, names) for tool in step.tools),
    )


def _renamed_dependency(dependency: str, names: Mapping[str, str]) -> str:
    session, _, number = dependency.rpartition("/")
    return f"{names[session]}/{number}"


def _renamed_tool(tool: Tool, names: Mapping[str, str]) -> Tool:
    if tool.child is None:
        return tool
    return msgspec.structs.replace(tool, child=names[tool.child])


def _merged_header(sources: Sequence[Source]) -> Header:
    counts = [source.files for source in sources if source.files is not None]
    source = Source(
        format=_joined([source.format for source in sources], "+") or "unknown",
        files=sum(counts) if len(counts) == len(sources) else None,
        license=_joined([source.license for source in sources], "; "),
        note=_joined([source.note for source in sources], "; "),
    )
    return Header(schema=SCHEMA, source=source)


def _joined(texts: Sequence[str | None], separator: str) -> str | None:
    """Join what differs, in order, without what is unknown."""
    return separator.join(dict.fromkeys(text for text in texts if text)) or None
