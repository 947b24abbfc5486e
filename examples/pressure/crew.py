"""All replays of a sweep, on all cores; what is there is kept when it is interrupted.

The first order of the sessions is replayed at every point before the second one is, so
that an interrupted sweep lacks orders, not points.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Protocol

from kvalet.runtime.traces import Trace

from .one_run import Machine, Outcome, parse_accelerators, run_once

# Progress is told at most that often.
_LINE_EVERY_S = 5.0


class Load(Protocol):
    """What is replayed at a point."""

    @property
    def name(self) -> str:
        """The workload."""
        ...

    @property
    def share(self) -> str:
        """Which part of the workload."""
        ...

    @property
    def accelerator(self) -> str:
        """What it runs on."""
        ...

    @property
    def live(self) -> int:
        """How many top-level sessions run at any time."""
        ...

    @property
    def description(self) -> str:
        """What it is, in a line or more."""
        ...

    def ordered(self, seed: int) -> Trace:
        """Return the sessions in the order of that number."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A load under a pressure; 0 is the pressure on memory without end.

    ``takes_all``: policies with and without limits are replayed here side by side.
    """

    load: Load
    pressure: float
    kv_tokens: int
    takes_all: bool = False

    @property
    def name(self) -> str:
        """As a line of progress or a table calls it."""
        load = self.load
        return f"{load.name}/{load.share} {load.accelerator} {self.pressure:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One replay: the number of its point, policy, number of the order."""

    point: int
    policy: str
    seed: int


@dataclass(slots=True)
class Results:
    """What has been found; ``failures`` are what was raised instead."""

    outcomes: dict[Job, Outcome] = field(default_factory=dict[Job, Outcome])
    failures: dict[Job, str] = field(default_factory=dict[Job, str])
    interrupted: bool = False

    def runs(self, point: int, policy: str) -> dict[int, Outcome]:
        """Return the outcomes of a policy at a point, by the number of the order."""
        found = {
            job.seed: outcome
            for job, outcome in self.outcomes.items()
            if job.point == point and job.policy == policy
        }
        return dict(sorted(found.items()))


def run_all(
    points: Sequence[Point],
    jobs: Iterable[Job],
    workers: int,
    say: Callable[[str], None],
) -> Results:
    """Run every job, by the number of its order; Ctrl-C ends it early."""
    results = Results()
    try:
        ordered = sorted(jobs, key=lambda job: job.seed)
        say(f"{len(ordered)} replays at {len(points)} points, on {workers} processes")
        _run_all(points, ordered, workers, results, say)
    except KeyboardInterrupt:
        results.interrupted = True
    return results


def _run_all(
    points: Sequence[Point],
    jobs: Sequence[Job],
    workers: int,
    results: Results,
    say: Callable[[str], None],
) -> None:
    context = multiprocessing.get_context("spawn")
    crew = ProcessPoolExecutor(workers, context, _leave_ctrl_c_alone)
    try:
        futures = {
            crew.submit(_run, points[job.point], job.policy, job.seed): job
            for job in jobs
        }
        _collect(futures, points, results, say)
    except KeyboardInterrupt:
        say("interrupted: the replays in progress end, no further ones start")
        raise
    finally:
        crew.shutdown(wait=True, cancel_futures=True)


def _run(point: Point, policy: str, seed: int) -> Outcome:
    machine = Machine(
        accelerators=parse_accelerators(point.load.accelerator),
        live=point.load.live,
        kv_tokens=point.kv_tokens,
    )
    return run_once(point.load.ordered(seed), machine, policy)


def _leave_ctrl_c_alone() -> None:
    """Let the parent alone decide what an interrupt means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _collect(
    futures: dict[Future[Outcome], Job],
    points: Sequence[Point],
    results: Results,
    say: Callable[[str], None],
) -> None:
    began_s = said_s = time.monotonic()
    for done, future in enumerate(as_completed(futures), start=1):
        job = futures[future]
        error = future.exception()
        if error is None:
            results.outcomes[job] = future.result()
        else:
            results.failures[job] = f"{type(error).__name__}: {error}"
            say(f"{points[job.point].name} {job.policy}: {results.failures[job]}")
        now_s = time.monotonic()
        if now_s - said_s >= _LINE_EVERY_S:
            left_s = (now_s - began_s) / done * (len(futures) - done)
            say(f"{done} of {len(futures)} replays, about {_duration(left_s)} left")
            said_s = now_s


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
