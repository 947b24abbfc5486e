"""Replaying small traces in virtual time, on an accelerator with round costs."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.replay import Measure, ReplaySettings, RunReport, replay_trace
from kvalet.runtime.runtime import Runtime
from kvalet.runtime.traces import Header, Source, Step, Tool, Trace, TraceSession
from kvalet.runtime.traces.schema import SCHEMA, Next, Status
from kvalet.scheduler import Event, SchedulerSettings, TurnSubmitted
from kvalet.state_store import MemoryStore
from tests.runtime.backends import RoundBackend


@dataclass(frozen=True)
class Outcome:
    """What one replay did: its events and its report."""

    events: Sequence[Event]
    report: RunReport
    turns: int

    def submitted(self, session: str) -> list[float]:
        """Return when the session's turns were submitted."""
        return [
            round(event.at_s, 6)
            for event in self.events
            if isinstance(event, TurnSubmitted) and event.session == session
        ]

    def prompts(self, session: str) -> list[tuple[int, int]]:
        """Return prompt and prefix tokens of the session's turns."""
        return [
            (event.prompt_tokens, event.prefix_tokens)
            for event in self.events
            if isinstance(event, TurnSubmitted) and event.session == session
        ]


def trace_of(*sessions: TraceSession) -> Trace:
    """Return a trace of these sessions."""
    header = Header(schema=SCHEMA, source=Source(format="test"))
    return Trace(header=header, sessions=sessions)


def replay(
    *sessions: TraceSession,
    policy: str = "keep",
    slots: int = 4,
    context_tokens: int = 1000,
    settings: ReplaySettings | None = None,
    store_bytes: int | None = None,
) -> Outcome:
    """Replay sessions under one policy."""
    trace = trace_of(*sessions)
    events: list[Event] = []
    turns: list[None] = []

    async def main() -> RunReport:
        measure = Measure()
        async with Runtime(
            RoundBackend(slots=slots, context_tokens=context_tokens),
            store=MemoryStore(store_bytes),
            policy=policy,
            settings=SchedulerSettings(max_prefills=slots),
            observers=[measure, events.append],
        ) as runtime:
            await replay_trace(
                trace,
                runtime,
                measure,
                settings or ReplaySettings(),
                lambda: turns.append(None),
            )
            scheduler = runtime.scheduler
            scheduler.check_integrity()
            assert (scheduler.sessions, scheduler.reserved_tokens) == (0, 0)
        return measure.summary(policy=policy, makespan_s=max(e.at_s for e in events))

    report = run_in_virtual_time(main())
    return Outcome(events, report, len(turns))


def step(
    number: int,
    session: str = "a",
    *,
    input: int | None = 100,
    prefix: int | None = 0,
    output: int | None = 1,
    tools: tuple[Tool, ...] = (),
    next: Next | None = None,
    user_ms: int | None = None,
    gap_ms: int | None = None,
    deps: tuple[str, ...] = (),
) -> Step:
    """A step: 100 new tokens (1 s of prefill) and one of answer, unless said."""
    return Step(
        session=session,
        step=number,
        input_tokens=input,
        prefix_tokens=prefix,
        output_tokens=output,
        tools=tools,
        next=next or ("tool" if tools else "end"),
        user_ms=user_ms,
        gap_ms=gap_ms,
        tool_ms=max((tool.dur_ms or 0 for tool in tools), default=None),
        deps=deps,
    )


def tool(
    id: str,
    dur_ms: int | None = 1000,
    *,
    name: str = "Bash",
    status: Status = "ok",
    start_ms: int | None = 0,
    child: str | None = None,
) -> Tool:
    """A call of a second."""
    return Tool(
        id=id, name=name, dur_ms=dur_ms, status=status, start_ms=start_ms, child=child
    )


def session(
    id: str,
    *steps: Step,
    arrival_ms: int = 0,
    parent: str | None = None,
    spawned_by: str | None = None,
    blocking: bool = True,
) -> TraceSession:
    """A session of these steps."""
    return TraceSession(
        id=id,
        steps=steps,
        arrival_ms=arrival_ms,
        parent=parent,
        spawned_by=spawned_by,
        blocking=blocking,
    )
