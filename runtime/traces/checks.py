"""The rules of ``kvalet.trace/1`` that types cannot state.

Each check yields problems; a problem knows the step or session it is about, and the
reader adds file and line. Replay relies on every one of these rules.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from .schema import Step
from .trace import TraceSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A broken rule: in which field of which session, or of which of its steps."""

    session: str
    step: int | None = None
    field: str
    sentence: str


def step_problems(step: Step, previous: Step | None) -> Iterator[Problem]:
    """Check a step against itself and against the one before it in its session."""
    for field, sentence in _order(step, previous):
        yield Problem(session=step.session, field=field, sentence=sentence)
    for field, sentence in _sizes(step):
        yield Problem(session=step.session, field=field, sentence=sentence)


def _order(step: Step, previous: Step | None) -> Iterator[tuple[str, str]]:
    expected = 0 if previous is None else previous.step + 1
    if step.step != expected:
        yield (
            "step",
            f"step {step.step} of session {step.session!r} is out of order; "
            f"expected step {expected}",
        )
    before_ms = None if previous is None else previous.t_ms
    if before_ms is not None and step.t_ms is not None and step.t_ms < before_ms:
        yield (
            "t_ms",
            f"{step.t_ms} is before {before_ms}, the start of the previous step",
        )


def _sizes(step: Step) -> Iterator[tuple[str, str]]:
    prefix, total, new = step.prefix_tokens, step.input_tokens, step.new_tokens
    if prefix is None or total is None:
        return
    if prefix > total:
        yield "prefix_tokens", f"{prefix} is more than the {total} input tokens"
    elif new is not None and prefix + new != total:
        yield (
            "new_tokens",
            f"{new} is not {total} input tokens less {prefix} prefix tokens",
        )


def family_problems(sessions: Mapping[str, TraceSession]) -> Iterator[Problem]:
    """Check what sessions say about each other, and tool ids within each."""
    for session in sessions.values():
        yield from _parent_problems(session, sessions)
        yield from _tool_problems(session, sessions)
        yield from _dependency_problems(session, sessions)
    yield from _circle_problems(sessions)


def _parent_problems(
    session: TraceSession, sessions: Mapping[str, TraceSession]
) -> Iterator[Problem]:
    sentence = _parent_sentence(session, sessions)
    if sentence is not None:
        yield Problem(session=session.id, field="parent", sentence=sentence)
    elif session.spawned_by is not None:
        parent = sessions.get(session.parent or "")
        ids = () if parent is None else (tool.id for tool in parent.tools)
        if session.spawned_by not in ids:
            sentence = (
                f"{session.spawned_by!r} is no tool call of the parent "
                f"session {session.parent!r}"
            )
            yield Problem(session=session.id, field="spawned_by", sentence=sentence)


def _parent_sentence(
    session: TraceSession, sessions: Mapping[str, TraceSession]
) -> str | None:
    if session.parent is not None and session.parent not in sessions:
        return f"{session.parent!r} is no session of this trace"
    if session.parent is None and session.spawned_by is not None:
        return f"a session spawned by {session.spawned_by!r} must name its parent"
    seen = {session.id}
    parent = session.parent
    while parent is not None and parent in sessions:
        if parent in seen:
            return f"session {session.id!r} is among its own ancestors"
        seen.add(parent)
        parent = sessions[parent].parent
    return None


def _tool_problems(
    session: TraceSession, sessions: Mapping[str, TraceSession]
) -> Iterator[Problem]:
    seen: set[str] = set()
    for step in session.steps:
        for index, tool in enumerate(step.tools):
            if tool.id in seen:
                yield Problem(
                    session=session.id,
                    step=step.step,
                    field=f"tools[{index}].id",
                    sentence=f"{tool.id!r} is the id of an earlier call too",
                )
            seen.add(tool.id)
            child = sessions.get(tool.child or "")
            if tool.child is not None and (
                child is None
                or (child.parent, child.spawned_by) != (session.id, tool.id)
            ):
                yield Problem(
                    session=session.id,
                    step=step.step,
                    field=f"tools[{index}].child",
                    sentence=f"{tool.child!r} is no session spawned by {tool.id!r}",
                )


def _dependency_problems(
    session: TraceSession, sessions: Mapping[str, TraceSession]
) -> Iterator[Problem]:
    for step in session.steps:
        for dependency in step.deps:
            name, _, number = dependency.rpartition("/")
            other = sessions.get(name)
            if (
                other is None
                or not number.isdecimal()
                or int(number) >= len(other.steps)
            ):
                yield Problem(
                    session=session.id,
                    step=step.step,
                    field="deps",
                    sentence=f"{dependency!r} is no session/step of this trace",
                )


def _circle_problems(sessions: Mapping[str, TraceSession]) -> Iterator[Problem]:
    """Check that some order of the steps does justice to all of them."""
    if not any(step.deps for session in sessions.values() for step in session.steps):
        return
    order = TopologicalSorter(_waits_for(sessions))
    try:
        order.prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        name, _, number = circle[0].rpartition("/")
        yield Problem(
            session=name,
            step=int(number),
            field="deps",
            sentence=f"the steps {', '.join(circle)} wait for each other",
        )


def _waits_for(sessions: Mapping[str, TraceSession]) -> dict[str, set[str]]:
    """Map each ``session/step`` to what must end before it starts."""
    graph: dict[str, set[str]] = {}
    for session in sessions.values():
        for step in session.steps:
            before = graph.setdefault(f"{session.id}/{step.step}", set())
            before.update(step.deps)
            if step.step:
                before.add(f"{session.id}/{step.step - 1}")
            for tool in step.tools:
                child = sessions.get(tool.child or "")
                if child is None:
                    continue
                graph.setdefault(f"{child.id}/0", set()).add(
                    f"{session.id}/{step.step}"
                )
                if child.blocking and step.step + 1 < len(session.steps):
                    following = f"{session.id}/{step.step + 1}"
                    last = f"{child.id}/{len(child.steps) - 1}"
                    graph.setdefault(following, set()).add(last)
    return graph
