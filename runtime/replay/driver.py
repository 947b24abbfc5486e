"""Agents that do what a trace says: the closed loop.

A session's next step starts when its previous one and its tools have ended *here*, not
when they ended in the recording: a faster scheduler gets its next work sooner. A
blocking subagent ends its parent's tool call with its own end here. Tools, user waits
and client overhead take their recorded time.

Time in which no session is live is skipped; how much is reported.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from ...backends import Sampling
from ..client import Session
from ..clock import LoopClock
from ..runtime import Runtime
from ..traces import Step, Tool, Trace, TraceSession
from .complete import completed
from .measure import Measure
from .prompts import PromptSource

_GREEDY = Sampling(ignore_stop=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """How to replay; prompts are drawn from the token ids in ``vocabulary``.

    With ``concurrency``, recorded arrivals are ignored and that many top-level sessions
    run at any time.
    """

    seed: int = 0
    vocabulary: Sequence[int] = (0,)
    concurrency: int | None = None


async def replay_trace(
    trace: Trace,
    runtime: Runtime,
    measure: Measure,
    settings: ReplaySettings,
    on_turn: Callable[[], None] = lambda: None,
) -> None:
    """Run every session of *trace* on *runtime* to its end; *measure* hears it all."""
    crowd = _Crowd(completed(trace), runtime, measure, settings, on_turn)
    if settings.concurrency is None:
        await crowd.run_as_recorded()
    else:
        await crowd.run_at_most(settings.concurrency)


class _Crowd:
    """All agents of one replay."""

    def __init__(
        self,
        trace: Trace,
        runtime: Runtime,
        measure: Measure,
        settings: ReplaySettings,
        on_turn: Callable[[], None],
    ) -> None:
        self.runtime = runtime
        self.clock = LoopClock()
        self.measure = measure
        self.settings = settings
        self.on_turn = on_turn
        self._sessions = {session.id: session for session in trace.sessions}
        self._children = _children_by_call(trace)
        spawned = {child.id for child in self._children.values()}
        roots = [s for s in trace.sessions if s.id not in spawned]
        self._roots = sorted(roots, key=lambda session: session.arrival_ms)
        self._live = 0
        self._all_gone = anyio.Event()
        self._tasks: TaskGroup | None = None
        here = {f"{step.session}/{step.step}" for step in trace.steps}
        self._step_ends = {
            dependency: anyio.Event()
            for step in trace.steps
            for dependency in step.deps
            if dependency in here  # the replay may be of a part of the trace
        }
        self._seats: anyio.Semaphore | None = None

    async def run_as_recorded(self) -> None:
        """Start every session at its recorded arrival, less what was skipped."""
        began_s = self.clock.now_s()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for root in self._roots:
                due_s = began_s + root.arrival_ms / 1000
                began_s -= await self._wait_or_skip(due_s)
                self._live += 1
                tasks.start_soon(self.run_session, root)

    async def run_at_most(self, concurrency: int) -> None:
        """Keep that many sessions going until all have run."""
        self._seats = anyio.Semaphore(concurrency)
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for root in self._roots:
                await self._seats.acquire()
                self._live += 1
                tasks.start_soon(self._run_seated, root)

    def child_of(self, session: TraceSession, tool: Tool) -> TraceSession | None:
        """Return the subagent that a tool call is, if it is one."""
        return self._children.get((session.id, tool.id))

    async def run_session(self, session: TraceSession) -> None:
        """Be one agent, from its first step to its last."""
        try:
            await _Agent(self, session).run()
        finally:
            self._live -= 1
            if not self._live:
                self._all_gone.set()

    async def _run_seated(self, root: TraceSession) -> None:
        assert self._seats is not None
        try:
            await self.run_session(root)
        finally:
            self._seats.release()

    async def run_child(self, child: TraceSession) -> None:
        """Be a subagent."""
        self._live += 1
        await self.run_session(child)

    def start_child(self, child: TraceSession) -> None:
        """Let a subagent run beside its parent."""
        assert self._tasks is not None
        self._tasks.start_soon(self.run_child, child)

    async def wait_for(self, step: Step) -> None:
        """Wait for the steps of other sessions that *step* needs.

        Whoever waits gives its seat to a session that may bring the step about.
        """
        ends = [self._step_ends.get(dependency) for dependency in step.deps]
        pending = [end for end in ends if end is not None and not end.is_set()]
        if not pending:
            return
        if self._seats is not None:
            self._seats.release()
        for end in pending:
            await end.wait()
        if self._seats is not None:
            await self._seats.acquire()

    def step_ended(self, step: Step) -> None:
        """Let those go on that wait for *step*."""
        ended = self._step_ends.get(f"{step.session}/{step.step}")
        if ended is not None:
            ended.set()
        self.on_turn()

    async def _wait_or_skip(self, due_s: float) -> float:
        """Wait until *due_s*, or until nobody is live; return what was skipped."""
        if self.clock.now_s() >= due_s:
            return 0.0
        if self._live:
            self._all_gone = anyio.Event()
            with anyio.move_on_after(due_s - self.clock.now_s()):
                await self._all_gone.wait()
        skipped_s = max(0.0, due_s - self.clock.now_s())
        self.measure.skip(skipped_s)
        return skipped_s


class _Agent:
    """One session's loop: prompt, answer, tools, gap."""

    def __init__(self, crowd: _Crowd, record: TraceSession) -> None:
        self._crowd = crowd
        self._clock = crowd.clock
        self._record = record
        self._prompts = PromptSource(
            seed=crowd.settings.seed,
            session=record.id,
            vocabulary=crowd.settings.vocabulary,
        )

    async def run(self) -> None:
        crowd, record = self._crowd, self._record
        began_s = self._clock.now_s()
        async with crowd.runtime.session(
            record.id, parent=record.parent, blocking=record.blocking
        ) as session:
            for step in record.steps:
                await crowd.wait_for(step)
                await self._turn(session, step)
                crowd.step_ended(step)
                await self._tools(session, step)
                await self._gap(session, step)
        crowd.measure.job_ended(self._clock.now_s() - began_s)

    async def _turn(self, session: Session, step: Step) -> None:
        kept, new, output = step.prefix_tokens, step.new_tokens, step.output_tokens
        assert kept is not None and new is not None and output is not None
        turn = session.turn(
            self._prompts.draw(new),
            max_tokens=output,
            sampling=_GREEDY,
            keep_tokens=kept,
        )
        self._crowd.measure.turn_began()
        async with turn as chunks:
            previous_s: float | None = None
            async for chunk in chunks:
                if not chunk.token_ids:  # text of tokens that come with a later chunk
                    continue
                now_s = self._clock.now_s()
                if previous_s is not None:
                    self._crowd.measure.tokens_came(
                        now_s - previous_s, len(chunk.token_ids)
                    )
                previous_s = now_s
        self._crowd.measure.turn_ended(turn.usage)

    async def _tools(self, session: Session, step: Step) -> None:
        if not step.tools:
            return
        if len(step.tools) == 1:
            await self._tool(session, step.tools[0])
            return
        async with anyio.create_task_group() as tasks:
            for tool in step.tools:
                tasks.start_soon(self._tool, session, tool)

    async def _tool(self, session: Session, tool: Tool) -> None:
        start_s = max(0, tool.start_ms or 0) / 1000
        if start_s:
            await asyncio.sleep(start_s)
        name = tool.name or "unknown"
        expected_s = self._foretold_s(tool)
        async with session.tool(
            name, class_name=tool.class_name, expected_s=expected_s
        ) as call:
            if tool.status != "ok":
                call.fail(tool.status)
            await self._work(tool)

    def _foretold_s(self, tool: Tool) -> float | None:
        """Return how long the tool takes, where the policy is one that may know."""
        if not self._crowd.runtime.policy.traits.clairvoyant:
            return None
        child = self._crowd.child_of(self._record, tool)
        if child is not None and child.blocking:
            return None  # it ends when it ends here
        return (tool.dur_ms or 0) / 1000

    async def _work(self, tool: Tool) -> None:
        child = self._crowd.child_of(self._record, tool)
        if child is not None and child.blocking:
            await self._crowd.run_child(child)
            return
        if child is not None:
            self._crowd.start_child(child)
        await asyncio.sleep((tool.dur_ms or 0) / 1000)

    async def _gap(self, session: Session, step: Step) -> None:
        """Let pass what is between the last tool's end and the next step."""
        rest_s = _rest_ms(step) / 1000
        if rest_s <= 0 or step.next == "end":
            return
        if step.next == "tool" and not step.tools:  # a tool that nobody named
            async with session.tool("unknown"):
                await asyncio.sleep(rest_s)
        else:
            await asyncio.sleep(rest_s)


def _rest_ms(step: Step) -> int:
    if step.user_ms is not None or step.overhead_ms is not None:
        return (step.user_ms or 0) + (step.overhead_ms or 0)
    if step.gap_ms is None:
        return 0
    return step.gap_ms - (step.tool_ms or 0)


def _children_by_call(trace: Trace) -> Mapping[tuple[str, str], TraceSession]:
    """Map (parent, tool call) to the session that the call is."""
    sessions = {session.id: session for session in trace.sessions}
    children = {
        (session.parent, session.spawned_by): session
        for session in trace.sessions
        if session.parent is not None and session.spawned_by is not None
    }
    for session in trace.sessions:
        for tool in session.tools:
            if tool.child is not None and tool.child in sessions:
                children[session.id, tool.id] = sessions[tool.child]
    return children
