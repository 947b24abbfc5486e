"""A trace as programs use it: sessions, each with its steps in order.

Built by the reader, the importers and the generator, which check it; so whoever holds a
:class:`Trace` may rely on unique session ids, on steps numbered 0, 1, 2, on parents
that exist, and on at least one step in each session.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .schema import Flag, Header, Step, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSession:
    """One lane of one agent's conversation; a subagent is a session with a parent.

    ``arrival_ms`` counts from the start of the trace. In a replay, a session with
    ``spawned_by`` starts when that tool call of its parent does.
    """

    id: str
    parent: str | None = None
    spawned_by: str | None = None
    arrival_ms: int = 0
    class_name: str | None = None
    blocking: bool = True
    steps: tuple[Step, ...]

    @property
    def longest_context_tokens(self) -> int:
        """Most tokens that the session ever holds: input and output of one step."""
        return max(context_tokens(step) for step in self.steps)

    @property
    def tools(self) -> Iterator[Tool]:
        """Every tool call, in the order of the steps."""
        return (tool for step in self.steps for tool in step.tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A header and the sessions below it, in the order of their records."""

    header: Header
    sessions: tuple[TraceSession, ...]

    @property
    def steps(self) -> Iterator[Step]:
        """Every step, session by session."""
        return (step for session in self.sessions for step in session.steps)

    @property
    def tools(self) -> Iterator[Tool]:
        """Every tool call, session by session."""
        return (tool for session in self.sessions for tool in session.tools)

    @property
    def step_count(self) -> int:
        """Number of steps in all sessions."""
        return sum(len(session.steps) for session in self.sessions)

    @property
    def tool_count(self) -> int:
        """Number of tool calls in all sessions."""
        return sum(len(step.tools) for step in self.steps)

    @property
    def input_tokens(self) -> int:
        """Sum of the known inputs: what is prefilled when nothing is ever kept."""
        return sum(step.input_tokens or 0 for step in self.steps)

    @property
    def new_tokens(self) -> int:
        """Sum of the known new tokens: what is prefilled when everything is kept."""
        return sum(step.new_tokens or 0 for step in self.steps)

    @property
    def output_tokens(self) -> int:
        """Sum of the known outputs."""
        return sum(step.output_tokens or 0 for step in self.steps)

    @property
    def longest_context_tokens(self) -> int:
        """Most tokens that any session ever holds."""
        return max(session.longest_context_tokens for session in self.sessions)

    def flags(self) -> dict[Flag, int]:
        """Count the steps that carry each quality flag, sorted by flag."""
        counts: Counter[Flag] = Counter(flag for step in self.steps for flag in step.q)
        return dict(sorted(counts.items()))

    def session(self, id: str) -> TraceSession:
        """Return the session of this id; raise KeyError where there is none."""
        for session in self.sessions:
            if session.id == id:
                return session
        raise KeyError(id)

    def children(self, id: str) -> tuple[TraceSession, ...]:
        """Return the sessions whose parent has this id."""
        return tuple(session for session in self.sessions if session.parent == id)


def context_tokens(step: Step) -> int:
    """Return the tokens of context after a step, unknown sizes counted as none."""
    return (step.input_tokens or 0) + (step.output_tokens or 0)
