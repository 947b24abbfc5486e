"""One replay in virtual time: a trace, an accelerator, a policy; and its figures.

An accelerator is named as in ``kvalet.backends.accelerators``. Two names joined by
``>`` are one that becomes the other when half of the turns have ended: every policy
then has as much work before the change as after it.
"""

from dataclasses import dataclass

import anyio
import msgspec

from kvalet.backends import SimulatedBackend
from kvalet.backends.accelerators import Accelerator, accelerator
from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.replay import Measure, ReplaySettings, RunReport, replay_trace
from kvalet.runtime.runtime import Runtime
from kvalet.runtime.traces import Trace
from kvalet.scheduler import parse_policy

from .lives import Lives, shortest_lives_s

SLOTS_PER_LIVE = 4
"""Slots are plentiful, so that it is tokens that are scarce."""

UNLIMITED_TOKENS = 2**40

# One word is drawn at no cost. It is not the token that simulated answers are made of:
# text that follows a cut history would look like the answer that stood there.
_WORDS = (1,)

# A context that nothing reaches; the largest that an engine's counters hold.
_LONGEST_CONTEXT_TOKENS = 2**30


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one replay came to; everything per top-level session, subagents included.

    ``job_s``: life of each session, in the order in which they ended. ``progress``:
    shortest possible life divided by it (``lives``). ``delay_s`` is their mean
    difference. ``moved_tokens`` went out of the accelerator or back.
    """

    job_s: tuple[float, ...]
    progress: tuple[float, ...]
    delay_s: float
    new_tokens: int
    reprefilled_tokens: int
    moved_tokens: int
    busy_share: float
    report: RunReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a policy runs on; ``accelerators``: one, or one and its successor."""

    accelerators: tuple[Accelerator, ...]
    live: int
    kv_tokens: int


def parse_accelerators(name: str) -> tuple[Accelerator, ...]:
    """Return what a name means; raise BackendError with what is valid.

    >>> len(parse_accelerators("h100-pcie>h100-10gbe"))
    2
    """
    return tuple(accelerator(part) for part in name.split(">"))


def run_once(trace: Trace, machine: Machine, policy: str) -> Outcome:
    """Replay *trace* to its end under the policy of that name."""
    return run_in_virtual_time(_run(trace, machine, policy))


async def _run(trace: Trace, machine: Machine, policy_name: str) -> Outcome:
    policy = parse_policy(policy_name)
    unlimited = policy.traits.unlimited
    kv_tokens = UNLIMITED_TOKENS if unlimited else machine.kv_tokens
    backend = SimulatedBackend(
        accelerator=machine.accelerators[0],
        slots=SLOTS_PER_LIVE * machine.live,
        kv_tokens=kv_tokens,
        context_tokens=min(kv_tokens, _LONGEST_CONTEXT_TOKENS),
    )
    measure, lives = Measure(), Lives()
    turns_left = trace.step_count - trace.step_count // 2

    def on_turn() -> None:
        nonlocal turns_left
        turns_left -= 1
        if turns_left == 0 and len(machine.accelerators) > 1:
            backend.become(machine.accelerators[1])

    async with Runtime(backend, policy=policy, observers=[measure, lives]) as runtime:
        settings = ReplaySettings(vocabulary=_WORDS, concurrency=machine.live)
        await replay_trace(trace, runtime, measure, settings, on_turn)
        makespan_s = anyio.current_time()
    report = measure.summary(policy=policy_name, makespan_s=makespan_s)
    return _outcome(trace, machine.accelerators[0], lives, report)


def _outcome(
    trace: Trace, constants: Accelerator, lives: Lives, report: RunReport
) -> Outcome:
    shortest_s = shortest_lives_s(trace, constants)
    job_s = tuple(seconds for _, seconds in lives.ended)
    least_s = [shortest_s[id] for id, _ in lives.ended]
    delays_s = [job - least for job, least in zip(job_s, least_s, strict=True)]
    moved_bytes = report.parks.bytes + report.restores.bytes
    return Outcome(
        job_s=job_s,
        progress=tuple(
            least / job if job else 1.0
            for job, least in zip(job_s, least_s, strict=True)
        ),
        delay_s=sum(delays_s) / len(delays_s),
        new_tokens=report.tokens.prefilled - report.tokens.reprefilled,
        reprefilled_tokens=report.tokens.reprefilled,
        moved_tokens=round(moved_bytes / constants.bytes_per_token),
        busy_share=report.accelerator.busy_s / report.makespan_s,
        # Tools are the trace's own; there are too many of them to repeat.
        report=msgspec.structs.replace(report, tools={}),
    )
