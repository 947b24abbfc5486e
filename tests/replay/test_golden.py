"""One small trace, four policies, every figure worked out by hand.

The accelerator has one slot. A token of prompt takes 0.01 s, a token of answer after
the first 0.1 s, a token copied out 0.01 s, copied back 0.005 s, and has 10 bytes.

The trace: *a* says 100 tokens and gets 5; its tool takes 4 s; it says 20 more, gets 5;
its tool takes 1 s; it says 10 more and gets 1. *b* arrives at 2.0 s, says 50 tokens and
gets 1. With unlimited memory the accelerator would work for a 1.0 + 0.4, for b 0.5, for
a 0.21 + 0.4 (20 new tokens and the last one of the answer, which was sampled and never
read) and 0.11: 2.62 s, of prompts of 100 + 50 + 125 + 140 = 415 tokens.

drop    a ends its answer at 1.4 and is dropped. b runs 2.0-2.5. a comes back at 5.4 and
        computes all 125 tokens (104 of them again, 1.04 s) until 6.65, answers until
        7.05, is dropped, comes back at 8.05 and computes 140 (129 again, 1.29 s): 9.45.
keep    a stays until b needs the slot at 2.0, and is dropped then: all as above until
        7.05. In the second wait nobody needs the slot: at 8.05 it computes 11, to 8.16.
park    a is copied 1.4-2.44 (104 tokens). b wants the slot at 2.0, gets it at 2.44, has
        its answer at 2.94. a comes back at 5.4, is restored until 5.92, computes 21
        until 6.13, answers until 6.53. Its copy (129 tokens) would last until 7.82; the
        tool ends at 7.53, so the state stays, and the turn waits for the end of the
        copy: 7.82 + 0.11 = 7.93.
hold:2  a holds on; b needs the slot at 2.0, so a is copied 2.0-3.04; b has its answer
        at 3.54. a as under park until 6.53. The second wait is shorter than 2 s, so
        nothing is copied: 7.53 + 0.11 = 7.64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from kvalet.runtime.replay import RunReport
from kvalet.runtime.replay.report import Summary

from .stage import replay, session, step, tool

USEFUL_S = 1.4 + 0.5 + 0.61 + 0.11
PROMPT_TOKENS = 100 + 50 + 125 + 140


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What one policy must cost; turns in the order a, b, a, a."""

    prefilled: int
    again: int
    busy_s: float
    queue_s: tuple[float, float, float, float]
    ttft_s: tuple[float, float, float, float]
    job_s: tuple[float, float]
    parks: tuple[int, int, float] = (0, 0, 0.0)
    restores: tuple[int, int, float] = (0, 0, 0.0)


GOLDEN = {
    "drop": Expected(
        prefilled=100 + 50 + 125 + 140,
        again=104 + 129,
        busy_s=1.4 + 0.5 + 1.65 + 1.40,
        queue_s=(0, 0, 0, 0),
        ttft_s=(1.0, 0.5, 1.25, 1.40),
        job_s=(9.45, 0.5),
    ),
    "keep": Expected(
        prefilled=100 + 50 + 125 + 11,
        again=104,
        busy_s=1.4 + 0.5 + 1.65 + 0.11,
        queue_s=(0, 0, 0, 0),
        ttft_s=(1.0, 0.5, 1.25, 0.11),
        job_s=(8.16, 0.5),
    ),
    "park": Expected(
        prefilled=100 + 50 + 21 + 11,
        again=0,
        busy_s=USEFUL_S,
        queue_s=(0, 0.44, 0.52, 0.29),
        ttft_s=(1.0, 0.94, 0.73, 0.40),
        job_s=(7.93, 0.94),
        parks=(2, 1040 + 1290, 1.04 + 1.29),
        restores=(1, 1040, 0.52),
    ),
    "hold:2": Expected(
        prefilled=100 + 50 + 21 + 11,
        again=0,
        busy_s=USEFUL_S,
        queue_s=(0, 1.04, 0.52, 0),
        ttft_s=(1.0, 1.54, 0.73, 0.11),
        job_s=(7.64, 1.54),
        parks=(1, 1040, 1.04),
        restores=(1, 1040, 0.52),
    ),
}


def run(policy: str) -> RunReport:
    """Replay the trace under one policy."""
    a = session(
        "a",
        step(0, input=100, output=5, tools=(tool("t", 4000),)),
        step(1, input=125, prefix=105, output=5, tools=(tool("u", 1000),)),
        step(2, input=140, prefix=130, output=1),
    )
    b = session("b", step(0, "b", input=50, output=1), arrival_ms=2000)
    return replay(a, b, policy=policy, slots=1).report


def check(summary: Summary, values: Sequence[float]) -> None:
    """Compare a summary with the values that it must be of."""
    ranked = sorted(values)
    middle = ranked[(len(ranked) - 1) // 2]
    assert summary.count == len(ranked)
    assert summary.mean == pytest.approx(sum(ranked) / len(ranked), abs=1e-6)
    assert summary.p50 == pytest.approx(middle, abs=1e-6)
    tail = (summary.p90, summary.p99, summary.max)
    assert tail == pytest.approx((ranked[-1],) * 3, abs=1e-6)


@pytest.mark.parametrize("policy", GOLDEN)
def test_times(policy: str) -> None:
    """Queueing, first tokens, jobs and the whole run, to the microsecond."""
    report, expected = run(policy), GOLDEN[policy]
    check(report.queue_s, expected.queue_s)
    check(report.ttft_s, expected.ttft_s)
    check(report.job_s, expected.job_s)
    decodes_s = (0.4, 0, 0.4, 0)
    check(
        report.turn_s,
        [a + b for a, b in zip(expected.ttft_s, decodes_s, strict=True)],
    )
    check(report.itl_s, [0.1] * 8)
    assert report.makespan_s == pytest.approx(max(expected.job_s), abs=1e-6)
    assert report.skipped_s == 0


@pytest.mark.parametrize("policy", GOLDEN)
def test_tokens(policy: str) -> None:
    """What was computed, what of it again, what was reused and restored."""
    tokens, expected = run(policy).tokens, GOLDEN[policy]
    assert tokens.prompt == PROMPT_TOKENS
    assert tokens.prefilled == expected.prefilled
    assert tokens.reused == PROMPT_TOKENS - expected.prefilled
    assert tokens.reprefilled == expected.again
    assert tokens.restored == 104 * expected.restores[0]
    assert tokens.decoded == 5 + 1 + 5 + 1


@pytest.mark.parametrize("policy", GOLDEN)
def test_accelerator(policy: str) -> None:
    """Busy as worked out; useful is the same 2.62 s under every policy."""
    accelerator = run(policy).accelerator
    assert accelerator.busy_s == pytest.approx(GOLDEN[policy].busy_s, abs=1e-6)
    assert accelerator.useful_s == pytest.approx(USEFUL_S, abs=1e-6)


@pytest.mark.parametrize("policy", GOLDEN)
def test_moves(policy: str) -> None:
    """Parks and restores: how many, how many bytes, how long; each one verified."""
    report, expected = run(policy), GOLDEN[policy]
    parks, restores = report.parks, report.restores
    assert (parks.count, parks.bytes) == expected.parks[:2]
    assert parks.seconds == pytest.approx(expected.parks[2], abs=1e-6)
    assert (restores.count, restores.bytes) == expected.restores[:2]
    assert restores.seconds == pytest.approx(expected.restores[2], abs=1e-6)
    assert restores.verified == restores.count
    assert (parks.failed, restores.failed, report.forced_admissions) == (0, 0, 0)


def test_tools_take_what_they_take() -> None:
    """Tool latency is the trace's under every policy."""
    for policy in GOLDEN:
        [(name, bash)] = run(policy).tools.items()
        assert (name, bash.count, bash.p50, bash.max) == ("Bash", 2, 1, 4)
        assert (bash.mean, bash.errors, bash.timeouts) == (2.5, 0, 0)
