"""The sessions and the rule of the first policy study, whose figures are to be beaten.

Sessions are one JSON list a line, one ``[input tokens, prefix tokens, output tokens,
seconds to the next step, tool]`` for each step. Half of them, by a seeded shuffle, are
left to learn from, which nobody does here; the others are replayed three times over.
24 are offered at all times. The mean is over the sessions that had ended when fewer
than half of the 24 were live: what runs on after that runs on an emptier machine.
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvalet.runtime.traces import (
    SCHEMA,
    Header,
    Source,
    Step,
    Tool,
    Trace,
    TraceSession,
    TraceUnreadable,
    context_tokens,
)

from .crew import Point
from .one_run import Outcome

LIVE = 24
ROUNDS = 3
CAPACITIES = (("study-fast", 375_000), ("study-slow", 750_000))
BEST_S = {"study-fast": 299.0, "study-slow": 344.0}
"""The best mean job completion time of the study; with endless memory it was 208."""

_HEADER = Header(schema=SCHEMA, source=Source(format="study"))

StudyStep = tuple[int, int, int, float, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLoad:
    """The study's sessions on one of its accelerators."""

    accelerator: str
    sessions: tuple[tuple[StudyStep, ...], ...]
    name: str = "study"
    share: str = "its own half"
    live: int = LIVE

    @property
    def description(self) -> str:
        """What it is, in a line."""
        return (
            f"study, {self.accelerator}: {len(self.sessions)} sessions "
            f"{ROUNDS} times, {self.live} live; to be beaten: "
            f"{BEST_S[self.accelerator]:.0f} s"
        )

    def ordered(self, seed: int) -> Trace:
        """Return the sessions in one of their orders; 0 is the study's own."""
        order = list(self.sessions)
        random.Random(seed).shuffle(order)
        sessions = reversed(order * ROUNDS)
        return Trace(
            header=_HEADER,
            sessions=tuple(
                _session(f"s{number}", steps) for number, steps in enumerate(sessions)
            ),
        )


def study_points(path: Path) -> list[Point]:
    """Return the study's two settings; raise TraceUnreadable where *path* is none."""
    sessions = _read(path)
    points: list[Point] = []
    for name, kv_tokens in CAPACITIES:
        load = StudyLoad(accelerator=name, sessions=sessions)
        steps = load.ordered(0).steps
        mean_tokens = statistics.fmean(context_tokens(step) for step in steps)
        pressure = LIVE * mean_tokens / kv_tokens
        points.append(
            Point(load=load, pressure=pressure, kv_tokens=kv_tokens, takes_all=True)
        )
    return points


def study_job_s(outcome: Outcome) -> float:
    """Return the mean job completion time by the study's rule."""
    return statistics.fmean(outcome.job_s[: len(outcome.job_s) - LIVE // 2 + 1])


def _read(path: Path) -> tuple[tuple[StudyStep, ...], ...]:
    try:
        lines = path.read_bytes().splitlines()
        sessions = [
            msgspec.json.decode(line, type=tuple[StudyStep, ...]) for line in lines
        ]
    except (OSError, msgspec.DecodeError) as error:
        raise TraceUnreadable.at(path, f"no sessions of the study: {error}") from error
    random.Random(1).shuffle(sessions)
    return tuple(sessions[1::2])


def _session(id: str, study_steps: Sequence[StudyStep]) -> TraceSession:
    steps: list[Step] = []
    context = 0
    for number, (tokens, prefix, output, gap_s, tool) in enumerate(study_steps):
        prefix = min(prefix, context, tokens)
        is_last = number == len(study_steps) - 1
        call = Tool(
            id=f"{id}/{number}",
            name=tool or "none",
            start_ms=0,
            dur_ms=max(0, round(gap_s * 1000)),
        )
        steps.append(
            Step(
                session=id,
                step=number,
                input_tokens=tokens,
                prefix_tokens=prefix,
                new_tokens=tokens - prefix,
                output_tokens=max(1, output),
                tools=() if is_last else (call,),
                next="end" if is_last else "tool",
            )
        )
        context = tokens + output
    return TraceSession(id=id, steps=tuple(steps))
