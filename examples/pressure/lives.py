"""How fast each session got on, compared with having the accelerator to itself.

Progress is the shortest possible life of a session on this accelerator (recorded waits,
each new token computed once, decoding alone) divided by its life in the replay: 1 when
nobody and nothing delayed it, near 0 when it hardly got on. Subagents are part of the
life of the session that they work for.
"""

from collections.abc import Mapping

from kvalet.backends.accelerators import Accelerator
from kvalet.runtime.traces import Step, Tool, Trace, TraceSession
from kvalet.scheduler import Event, SessionClosed, SessionOpened


class Lives:
    """An observer that notes from when to when each top-level session lived."""

    def __init__(self) -> None:
        self._opened_s: dict[str, float] = {}
        self.ended: list[tuple[str, float]] = []
        """Session and length of life in seconds, in the order of the ends."""

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, SessionOpened) and event.parent is None:
            self._opened_s[event.session] = event.at_s
        elif isinstance(event, SessionClosed) and event.session in self._opened_s:
            lived_s = event.at_s - self._opened_s.pop(event.session)
            self.ended.append((event.session, lived_s))


def shortest_lives_s(trace: Trace, accelerator: Accelerator) -> Mapping[str, float]:
    """Return the shortest possible life of every top-level session, in seconds."""
    sessions = {session.id: session for session in trace.sessions}
    return {
        session.id: _life_s(session, sessions, accelerator)
        for session in trace.sessions
        if session.parent is None
    }


def _life_s(
    session: TraceSession,
    sessions: Mapping[str, TraceSession],
    accelerator: Accelerator,
) -> float:
    def tool_s(tool: Tool) -> float:
        start_s = max(0, tool.start_ms or 0) / 1000
        child = None if tool.child is None else sessions.get(tool.child)
        if child is not None and child.blocking:
            return start_s + _life_s(child, sessions, accelerator)
        return start_s + (tool.dur_ms or 0) / 1000

    total_s = 0.0
    for step in session.steps:
        total_s += _model_s(step, accelerator)
        total_s += max((tool_s(tool) for tool in step.tools), default=0.0)
        if step.next != "end":
            total_s += _rest_s(step)
    return total_s


def _model_s(step: Step, accelerator: Accelerator) -> float:
    new, prefix = step.new_tokens or 0, step.prefix_tokens or 0
    rest = max(0, (step.output_tokens or 1) - 1)
    step_s = accelerator.step_s(1, prefix + new + rest // 2)
    return accelerator.prefill_s(new, prefix) + rest * step_s


def _rest_s(step: Step) -> float:
    """Return what is left of the gap when the tools have ended."""
    if step.user_ms is not None or step.overhead_ms is not None:
        return ((step.user_ms or 0) + (step.overhead_ms or 0)) / 1000
    return max(0, (step.gap_ms or 0) - (step.tool_ms or 0)) / 1000
