"""What deciding costs: microseconds per event and bytes per session, at many sessions.

    python examples/scheduler_cost.py [--sessions 100,1000,10000,100000] [--policy auto]

It drives one scheduler, and nothing else, with agents that take turns and wait for
tools, in virtual time. Memory holds a quarter of their conversations, so that a turn
that comes back finds it full. Printed is the CPU time of ``apply`` and ``plan`` per
event, and what a session keeps alive in the scheduler (by tracemalloc, apart).
"""

import argparse
import heapq
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable

from kvalet.scheduler import (
    CallId,
    Capacity,
    Copied,
    CopyStarted,
    DecodeDone,
    DecodeStarted,
    Event,
    InvalidSetting,
    Plan,
    PrefillDone,
    PrefillStarted,
    Restored,
    RestoreStarted,
    Scheduler,
    SchedulerSettings,
    SessionId,
    SessionOpened,
    ToolEnded,
    ToolStarted,
    TurnSubmitted,
    parse_policy,
)

TOKENS = 1000
TOOLS = ("Bash", "Read", "Edit", "Grep", "Task", "WebFetch")


class Crowd:
    """Agents in a heap of events; only what the scheduler itself takes is timed."""

    def __init__(self, sessions: int, policy: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.scheduler = Scheduler(
            capacity=Capacity(
                slots=max(2, sessions // 3),
                kv_tokens=max(8 * TOKENS, sessions * TOKENS // 4),
                context_tokens=4 * TOKENS,
                bytes_per_token=1,
                exports_rows=True,
                exports_slices=True,
            ),
            policy=parse_policy(policy),
            settings=SchedulerSettings(max_prefills=4),
        )
        self.events = 0
        self.spent_s = 0.0
        self._calls = 0
        # A turn takes the accelerator a millisecond, so that everybody gets its turn.
        self._tool_s = sessions * 2e-3
        self._heap: list[tuple[float, int, Callable[[float], Event]]] = []
        for number in range(sessions):
            name = SessionId(f"s{number}")
            self._tell(SessionOpened(at_s=0.0, session=name))
            self._later(self.random.uniform(0, self._tool_s), self._submission(name))

    def run(self, events: int) -> float:
        """Let *events* happen; return the CPU seconds that deciding took."""
        until, before_s = self.events + events, self.spent_s
        while self.events < until:
            at_s, _, happening = heapq.heappop(self._heap)
            self._tell(happening(at_s))
        return self.spent_s - before_s

    def _tell(self, event: Event) -> None:
        began_s = time.process_time()
        self.scheduler.apply(event, event.at_s)
        plan = self.scheduler.plan(event.at_s)
        self.spent_s += time.process_time() - began_s
        self.events += 1
        self._carry_out(plan, event.at_s)
        if isinstance(event, DecodeDone):
            self._use_tool(event.session, event.at_s)

    def _carry_out(self, plan: Plan, now_s: float) -> None:
        for copy in plan.copy:
            self._later(now_s + 1e-4, _copied(copy))
        for restore in plan.restore:
            self._later(now_s + 1e-4, _restored(restore))
        for start in plan.start:
            self._later(now_s + 1e-3, self._ended(start))

    def _later(self, at_s: float, happening: Callable[[float], Event]) -> None:
        self._calls += 1
        heapq.heappush(self._heap, (at_s, self._calls, happening))

    def _submission(self, name: SessionId) -> Callable[[float], Event]:
        return lambda at_s: TurnSubmitted(
            at_s=at_s,
            session=name,
            prompt_tokens=TOKENS,
            prefix_tokens=self.scheduler.session(name).kv_tokens,
            max_output_tokens=50,
        )

    def _ended(self, start: PrefillStarted | DecodeStarted) -> Callable[[float], Event]:
        name = start.session
        if isinstance(start, DecodeStarted):
            return lambda at_s: DecodeDone(
                at_s=at_s, session=name, output_tokens=50, kv_tokens=TOKENS + 49
            )
        held = self.scheduler.session(name).reusable_tokens
        return lambda at_s: PrefillDone(
            at_s=at_s,
            session=name,
            computed_tokens=TOKENS - min(held, TOKENS - 1),
            reused_tokens=min(held, TOKENS - 1),
            expected_tokens=min(held, TOKENS - 1),
        )

    def _use_tool(self, name: SessionId, now_s: float) -> None:
        self._calls += 1
        call, tool = CallId(f"c{self._calls}"), self.random.choice(TOOLS)
        seconds = self._tool_s * self.random.lognormvariate(-0.7, 1.2)
        self._tell(
            ToolStarted(at_s=now_s, session=name, call=call, tool=tool, tool_class=tool)
        )
        self._later(
            now_s + seconds,
            lambda at_s: ToolEnded(
                at_s=at_s,
                session=name,
                call=call,
                tool=tool,
                tool_class=tool,
                seconds=seconds,
                status="ok",
            ),
        )
        self._later(now_s + seconds, self._submission(name))


def _copied(copy: CopyStarted) -> Callable[[float], Event]:
    return lambda at_s: Copied(
        at_s=at_s,
        session=copy.session,
        kv_tokens=copy.kv_tokens,
        nbytes=copy.kv_tokens - copy.first_token,
        seconds=1e-4,
        tier="host",
    )


def _restored(restore: RestoreStarted) -> Callable[[float], Event]:
    return lambda at_s: Restored(
        at_s=at_s,
        session=restore.session,
        kv_tokens=restore.kv_tokens,
        nbytes=restore.kv_tokens,
        seconds=1e-4,
        tier="host",
    )


def measure(sessions: int, policy: str, rounds: int) -> str:
    """Return one line: the median of *rounds* measurements after a warm-up."""
    crowd = Crowd(sessions, policy, seed=1)
    crowd.run(max(5_000, 8 * sessions))
    events = 10_000
    costs_us = [crowd.run(events) / events * 1e6 for _ in range(rounds)]
    return (
        f"{sessions:8,} sessions: {statistics.median(costs_us):6.1f} µs per event "
        f"({min(costs_us):.1f} to {max(costs_us):.1f}), "
        f"{bytes_per_session(sessions, policy):6,.0f} bytes per session"
    )


def bytes_per_session(sessions: int, policy: str) -> float:
    """Return what the scheduler keeps for each session, all of them having lived."""
    sessions = min(sessions, 10_000)  # tracing is slow, and the figure is a mean
    tracemalloc.start()
    crowd = Crowd(1, policy, seed=1)
    crowd.run(100)
    before = tracemalloc.take_snapshot()
    crowd = Crowd(sessions, policy, seed=1)
    crowd.run(6 * sessions)
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    ours = [tracemalloc.Filter(inclusive=True, filename_pattern="*scheduler/*")]
    changes = after.filter_traces(ours).compare_to(
        before.filter_traces(ours), "filename"
    )
    return sum(change.size_diff for change in changes) / sessions


def main() -> int:
    """Measure each number of sessions in turn."""
    parser = argparse.ArgumentParser(description="What deciding costs.")
    parser.add_argument("--sessions", default="100,1000,10000,100000")
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    try:
        counts = [int(count) for count in options.sessions.split(",")]
        parse_policy(options.policy)
        if min(counts) < 1 or options.rounds < 1:
            raise ValueError("sessions and rounds must be at least 1")
    except (ValueError, InvalidSetting) as error:
        print(f"scheduler_cost: {error}", file=sys.stderr)
        return 2
    for count in counts:
        print(measure(count, options.policy, options.rounds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
