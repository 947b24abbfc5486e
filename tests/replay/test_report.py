"""The report: every figure was measured, and figures agree with each other."""

import json
import random
from collections import Counter
from pathlib import Path

import anyio
import pytest

from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.errors import WrongInput
from kvalet.runtime.replay.engines import EngineOptions
from kvalet.runtime.replay.report import (
    Report,
    Summary,
    check_writable,
    encode_report,
    write_report,
)
from kvalet.runtime.replay.run import Progress, Replay, RunOptions
from kvalet.runtime.traces import Step, Trace
from kvalet.runtime.traces.generate import generate
from kvalet.runtime.traces.settings import GeneratorSettings
from kvalet.scheduler import parse_policy
from tests.runtime.traces.builders import make_trace

from .stage import session, step

POLICIES = ("drop", "keep", "park", "hold:2")


def crowd(seed: int = 3) -> Trace:
    """Return a generated trace of ten sessions with tools, users and subagents."""
    return generate(GeneratorSettings(seed=seed, sessions=10, mean_steps=6.0))


def options(**engine: int) -> RunOptions:
    """Return options for every policy on the simulated backend."""
    return RunOptions(
        engine=EngineOptions(backend="simulated", slots=engine.get("slots", 2)),
        policies=[parse_policy(name) for name in POLICIES],
    )


def run(trace: Trace) -> Report:
    """Replay to the end and return the report."""
    job = Replay(trace, options(), Progress())
    run_in_virtual_time(job.run())
    return job.report


@pytest.fixture(scope="module")
def report() -> Report:
    """One report for all tests that only read it."""
    return run(crowd())


# ---- quantiles -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "p50", "p90", "p99"),
    [
        ([7.0], 7, 7, 7),
        ([1.0, 2.0], 1, 2, 2),
        ([1.0, 2.0, 3.0, 4.0], 2, 4, 4),
        ([float(n) for n in range(1, 11)], 5, 9, 10),
        ([float(n) for n in range(1, 101)], 50, 90, 99),
        ([float(n) for n in range(1, 201)], 100, 180, 198),
    ],
)
def test_quantiles_are_by_nearest_rank(
    values: list[float], p50: float, p90: float, p99: float
) -> None:
    """The smallest value that at least so many are at or below; order is no matter."""
    random.Random(1).shuffle(values)
    summary = Summary.of(values)
    assert (summary.p50, summary.p90, summary.p99) == (p50, p90, p99)
    assert (summary.count, summary.max) == (len(values), max(values))
    assert summary.mean == pytest.approx(sum(values) / len(values))


def test_quantiles_of_many_sizes() -> None:
    """No size suffers from rounding: rank ceil(q n), in whole numbers."""
    for total in range(1, 700):
        summary = Summary.of([float(n) for n in range(1, total + 1)])
        ranks = [-(-total * percent // 100) for percent in (50, 90, 99)]
        assert [summary.p50, summary.p90, summary.p99] == ranks


def test_counts_weigh() -> None:
    """A value that came often counts that often."""
    summary = Summary.of_counts(Counter({1.0: 90, 2.0: 9, 50.0: 1}))
    assert (summary.p50, summary.p90, summary.p99, summary.max) == (1, 1, 2, 50)
    assert summary.mean == pytest.approx((90 + 18 + 50) / 100)


def test_nothing_measured_is_null() -> None:
    """Without values there are no figures, and no zeros in their place."""
    summary = Summary.of([])
    assert summary == Summary(
        count=0, mean=None, p50=None, p90=None, p99=None, max=None
    )


# ---- figures that have to agree ------------------------------------------------------


def test_tokens_add_up(report: Report) -> None:
    """What was prefilled and what was reused is what was asked."""
    assert [run.policy for run in report.runs] == list(POLICIES)
    for run in report.runs:
        assert run.tokens.prefilled + run.tokens.reused == run.tokens.prompt
        assert 0 <= run.tokens.reprefilled <= run.tokens.prefilled


def test_every_policy_has_the_same_work(report: Report) -> None:
    """Prompts, answers, turns and tool calls do not depend on the policy."""
    work = {
        (run.tokens.prompt, run.tokens.decoded, run.turns, run.job_s.count)
        for run in report.runs
    }
    assert len(work) == 1
    assert {run.turns for run in report.runs} == {report.trace.steps}
    calls = [{name: t.count for name, t in run.tools.items()} for run in report.runs]
    assert all(each == calls[0] for each in calls)


def test_what_is_not_repeated_is_the_same_for_all(report: Report) -> None:
    """Prefilled less re-prefilled is the least that anybody has to compute."""
    assert (
        len({run.tokens.prefilled - run.tokens.reprefilled for run in report.runs}) == 1
    )


def test_useful_time_is_a_part_of_busy_time(report: Report) -> None:
    """0 <= useful <= busy <= makespan, and drop wastes more than park."""
    for run in report.runs:
        assert 0 <= run.accelerator.useful_s <= run.accelerator.busy_s
        assert run.accelerator.busy_s <= run.makespan_s
    runs = {run.policy: run for run in report.runs}
    wasted = {
        name: run.accelerator.busy_s - run.accelerator.useful_s
        for name, run in runs.items()
    }
    assert wasted["drop"] > wasted["park"]


def test_moves_happen_only_where_a_policy_moves(report: Report) -> None:
    """drop and keep move nothing; park restores what it parked, all verified."""
    runs = {run.policy: run for run in report.runs}
    for name in ("drop", "keep"):
        assert (runs[name].parks.count, runs[name].restores.count) == (0, 0)
    for name in ("park", "hold:2"):
        parks, restores = runs[name].parks, runs[name].restores
        assert 0 < restores.count <= parks.count
        assert restores.verified == restores.count
        assert parks.failed == restores.failed == 0
    assert runs["hold:2"].parks.count < runs["park"].parks.count
    assert runs["drop"].tokens.reused == 0 or runs["drop"].tokens.restored == 0


def test_phases_of_a_turn_are_in_order(report: Report) -> None:
    """Waiting is part of the time to the first token, that is part of the turn."""
    for run in report.runs:
        assert (run.queue_s.max or 0) <= (run.ttft_s.max or 0) <= (run.turn_s.max or 0)
        for summary in (run.queue_s, run.ttft_s, run.turn_s, run.job_s):
            assert summary.p50 is not None and summary.max is not None
            assert (
                summary.p50 <= (summary.p90 or 0) <= (summary.p99 or 0) <= summary.max
            )


# ---- the file ------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes(report: Report) -> None:
    """Nothing in the report depends on when or where it was made."""
    assert encode_report(run(crowd())) == encode_report(report)


def test_another_trace_gives_another_report(report: Report) -> None:
    """The comparison above can fail."""
    assert encode_report(run(crowd(seed=4))) != encode_report(report)


def test_the_file_is_the_contract(report: Report, tmp_path: Path) -> None:
    """kvalet.report/1 as design.md has it, plain JSON, no temporary file left."""
    path = tmp_path / "report.json"
    write_report(report, path)
    content = json.loads(path.read_text())
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]
    assert (content["schema"], content["partial"]) == ("kvalet.report/1", False)
    assert (content["backend"], content["seed"]) == ("simulated", 0)
    for each in content["runs"]:
        assert each.keys() >= {
            *("policy", "makespan_s", "turns", "lost_turns", "job_s", "turn_s"),
            *("ttft_s", "itl_s", "queue_s", "tokens", "accelerator", "parks"),
            *("restores", "tools", "forced_admissions"),
        }
        assert each["job_s"].keys() >= {"mean", "p50", "p90", "p99", "max"}
        assert each["restores"].keys() >= {
            *("count", "bytes", "seconds", "verified", "hidden", "wasted", "failed"),
        }
        for tool in each["tools"].values():
            assert tool.keys() >= {
                *("count", "mean", "p50", "p90", "p99", "max"),
                *("timeouts", "errors", "retries"),
            }


def test_a_report_that_cannot_be_written(report: Report, tmp_path: Path) -> None:
    """A folder in its place is one sentence, and the folder stays as it was."""
    with pytest.raises(WrongInput, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(WrongInput, match="can't be written"):
        check_writable(tmp_path / "none" / "report.json")
    with pytest.raises(WrongInput, match="can't be written"):
        write_report(report, tmp_path / "none" / "report.json")
    assert list(tmp_path.iterdir()) == []


class _StopAfter(Progress):
    """Cancels the replay after so many turns."""

    def __init__(self, turns: int, scope: anyio.CancelScope) -> None:
        self._turns = turns
        self._scope = scope

    def advance(self) -> None:
        """Count a turn."""
        self._turns -= 1
        if self._turns == 0:
            self._scope.cancel()


def test_an_interrupted_replay_is_a_partial_report() -> None:
    """What was measured is kept, complete policies and the one that was cut."""
    trace = crowd()
    turns = trace.step_count + 7

    async def main() -> Report:
        scope = anyio.CancelScope()
        job = Replay(trace, options(), _StopAfter(turns, scope))
        with scope:
            await job.run()
        assert scope.cancelled_caught
        return job.report

    report = run_in_virtual_time(main())
    assert report.partial
    assert [run.turns for run in report.runs] == [trace.step_count, 7]
    assert json.loads(encode_report(report))["partial"] is True


def test_a_replay_that_has_not_begun_is_partial() -> None:
    """The report may be asked for at any time, and never claims too much."""
    report = Replay(crowd(), options(), Progress()).report
    assert report.partial and report.runs == ()


def test_the_simulated_accelerator_fits_the_trace(report: Report) -> None:
    """Without a choice, a slot holds the longest context, and all slots hold it."""
    assert report.context_tokens == crowd().longest_context_tokens
    assert report.slots == 2


@pytest.mark.parametrize(
    "steps",
    [
        [step(0, output=0)],
        [step(0, output=None)],
        [
            step(0, input=None, prefix=None, output=None),
            step(1, input=None, prefix=None, output=None),
        ],
        [step(0, output=10), step(1, input=None, prefix=None, output=10)],
        [step(0, output=10), step(1, input=50, prefix=None, output=10)],
    ],
)
def test_unknown_and_zero_sizes_replay(steps: list[Step]) -> None:
    """Null is unknown and a history may shrink: every step is a turn that fits."""
    options = RunOptions(
        engine=EngineOptions(backend="simulated"), policies=[parse_policy("park")]
    )
    job = Replay(make_trace(session("a", *steps)), options, Progress())
    run_in_virtual_time(job.run())
    assert job.report.runs[0].turns == len(steps)
