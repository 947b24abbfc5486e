"""Nobody starves, more memory never costs, and what fits twice stays at rest."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.replay import Measure, ReplaySettings, RunReport, replay_trace
from kvalet.runtime.runtime import Runtime
from kvalet.runtime.traces import Step, Trace, TraceSession
from kvalet.scheduler import (
    Copied,
    Event,
    Released,
    Restored,
    SchedulerSettings,
    SessionId,
    parse_policy,
)

from ..replay.stage import session, step, tool, trace_of
from ..runtime.backends import RoundBackend
from ..scheduler.carrier import Carrier

AGE_BOUND_S = 30.0


@pytest.mark.parametrize("policy", ["keep", "drop", "park", "hold:2", "auto"])
@given(
    prompts=st.lists(st.integers(10, 60), min_size=3, max_size=3),
    priorities=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    victim=st.integers(1, 90),
    in_tools=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_nobody_starves(
    policy: str,
    prompts: list[int],
    priorities: list[int],
    victim: int,
    in_tools: bool,
) -> None:
    """However often others come first, a turn is in soon after its age bound.

    Three sessions of at least its priority ask again the moment they are answered, or
    sit in tools with their memory; each unit of work takes a second.
    """
    carrier = Carrier(
        policy=parse_policy(policy),
        slots=3,
        kv_tokens=160,
        settings=SchedulerSettings(age_bound_s=AGE_BOUND_S),
    )
    names = ("a", "b", "c")
    for name, priority in zip(names, priorities, strict=True):
        carrier.open(name, priority=priority)
    carrier.open("victim")
    for name, prompt in zip(names, prompts, strict=True):
        _bring_in(carrier, name, prompt)
        if in_tools:
            carrier.tool(name)
    carrier.submit("victim", victim)
    began_s = carrier.now_s
    while not _admitted(carrier, "victim"):
        for name, prompt in zip(names, prompts, strict=True):
            asking = carrier.scheduler.session(SessionId(name))
            if (
                not in_tools
                and asking.turn is None
                and not _admitted(carrier, "victim")
            ):
                carrier.submit(name, prompt, min(prompt, asking.kv_tokens))
        carrier.wait(1)
        if carrier.busy:
            carrier.finish(min(carrier.busy), 1)
        # The bound, and what may be at work or urgent before it: three turns of two
        # units, and their copies out and back.
        assert carrier.now_s - began_s <= AGE_BOUND_S + 3 * 4


def _bring_in(carrier: Carrier, name: str, prompt: int) -> None:
    """Let a session have a first turn, whenever the policy lets it."""
    carrier.submit(name, prompt)
    while carrier.scheduler.session(SessionId(name)).turn is not None:
        if carrier.busy:
            carrier.finish(min(carrier.busy), 1)
        else:
            wake_at_s = carrier.plans[-1].wake_at_s
            assert wake_at_s is not None
            carrier.wait(wake_at_s - carrier.now_s)


def _admitted(carrier: Carrier, name: str) -> bool:
    turn = carrier.scheduler.session(SessionId(name)).turn
    return turn is None or turn.admitted


def replay(trace: Trace, policy: str, kv_tokens: int) -> tuple[RunReport, list[Event]]:
    """Replay *trace* with so much memory, eight agents at a time."""
    events: list[Event] = []

    async def main() -> RunReport:
        measure = Measure()
        async with Runtime(
            RoundBackend(
                slots=16,
                kv_tokens=kv_tokens,
                context_tokens=kv_tokens,
                exports_rows=True,
            ),
            policy=policy,
            observers=[measure, events.append],
        ) as runtime:
            settings = ReplaySettings(concurrency=8, vocabulary=(1,))
            await replay_trace(trace, runtime, measure, settings)
        return measure.summary(policy=policy, makespan_s=0.0)

    return run_in_virtual_time(main()), events


def crowd(seed: int) -> Trace:
    """Sixteen agents of some turns each, with tools from short to long."""
    draw = random.Random(seed)
    sessions: list[TraceSession] = []
    for number in range(16):
        name, context = f"s{number}", 0
        steps: list[Step] = []
        for turn in range(draw.randint(4, 9)):
            new = draw.randint(20, 90)
            call = tool(f"{name}/{turn}", round(1000 * draw.lognormvariate(0.5, 1.5)))
            steps.append(
                step(
                    turn,
                    name,
                    input=context + new,
                    prefix=context,
                    output=10,
                    tools=(call,),
                )
            )
            context += new + 10
        sessions.append(session(name, *steps))
    return trace_of(*sessions)


@pytest.mark.parametrize("policy", ["keep", "park", "auto"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_more_memory_never_computes_more_again(policy: str, seed: int) -> None:
    """Each half more of memory computes no more again than a fiftieth above before.

    Exactly it is not true of any rule that orders by recency: with more memory turns
    come in another order, and other state is the least recently used.
    """
    trace = crowd(seed)
    again = [
        replay(trace, policy, kv_tokens)[0].tokens.reprefilled
        for kv_tokens in (1000, 1500, 2250, 3400, 5000, 20_000)
    ]
    total = trace.input_tokens
    assert all(more <= less + total / 50 for less, more in pairwise(again))
    assert again[-1] == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_fits_twice_stays_at_rest(seed: int) -> None:
    """With twice the memory that all need, auto moves nothing and costs nothing."""
    trace = crowd(seed)
    kv_tokens = 2 * 8 * trace.longest_context_tokens
    report, events = replay(trace, "auto", kv_tokens)
    kept, _ = replay(trace, "keep", kv_tokens)
    assert not [event for event in events if isinstance(event, Copied | Restored)]
    assert all(e.kept_tokens == 0 for e in events if isinstance(e, Released))
    assert (report.job_s, report.ttft_s) == (kept.job_s, kept.ttft_s)
