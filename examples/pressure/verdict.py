"""Does the judged policy keep its promises at a point?

Best mean job completion time of all policies that do not know the future, or within
2 % of it; best p99 and maximum of the time to the first token, or within noise; never a
worse p99 than ``keep``; and where memory is plentiful, nothing moves and nothing is
lost against ``keep``. Noise is a 95 % interval of the paired ratio that contains 1.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from kvalet.scheduler import parse_policy

from .intervals import interval, ratio
from .one_run import Outcome

JUDGED = "auto"
UNGATED = "keep"
JOB_SLACK = 0.02
PLENTY_PRESSURE = 0.5

CLAIMS = ("job", "ttft p99", "ttft max", "p99 of keep", "idle cost")
"""What each claim is about, in the order of the verdict."""

# What rounding may make of replays that are the same.
_NOTHING = 1e-3

Runs = Mapping[str, Mapping[int, Outcome]]
"""Outcomes by policy and by the number of the order."""

State = Literal["met", "noise", "missed"]
Figure = Callable[[Outcome], float]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One promise: the judged policy divided by *rival*, with its interval."""

    name: str
    rival: str
    ratio: float
    low: float
    high: float
    state: State
    moved_tokens: int | None = None

    @property
    def outcome(self) -> str:
        """How it stands, in a word or three."""
        if self.state != "missed":
            return self.state
        if self.moved_tokens:
            return f"missed: {self.moved_tokens:,} moved"
        return f"missed by {self.ratio - 1:.1%}"


def job_s(outcome: Outcome) -> float:
    """Return the mean job completion time, waiting included."""
    return sum(outcome.job_s) / len(outcome.job_s)


def ttft_p99_s(outcome: Outcome) -> float:
    """Return the 99th percentile of the time to the first token."""
    return outcome.report.ttft_s.p99 or 0.0


def ttft_max_s(outcome: Outcome) -> float:
    """Return the longest time to a first token."""
    return outcome.report.ttft_s.max or 0.0


def is_realisable(policy: str) -> bool:
    """Return whether a policy neither knows the future nor has endless memory."""
    traits = parse_policy(policy).traits
    return not (traits.clairvoyant or traits.unlimited)


def judge(runs: Runs, pressure: float) -> tuple[Claim, ...]:
    """Return every claim that can be judged with these runs."""
    ours = runs.get(JUDGED, {})
    rivals = [
        policy
        for policy, outcomes in runs.items()
        if policy != JUDGED and ours.keys() & outcomes.keys() and is_realisable(policy)
    ]
    if not rivals:
        return ()
    claims = [
        _against_best("job", runs, rivals, job_s, JOB_SLACK),
        _against_best("ttft p99", runs, rivals, ttft_p99_s),
        _against_best("ttft max", runs, rivals, ttft_max_s),
    ]
    if UNGATED in rivals:
        claims.append(_claim("p99 of keep", runs, UNGATED, ttft_p99_s))
        if pressure <= PLENTY_PRESSURE:
            claims.append(_plenty(runs))
    return tuple(claims)


def _against_best(
    name: str, runs: Runs, rivals: list[str], figure: Figure, slack: float = 0.0
) -> Claim:
    def mean(policy: str) -> float:
        seeds = runs[JUDGED].keys() & runs[policy].keys()
        return interval([figure(runs[policy][seed]) for seed in seeds]).mean

    return _claim(name, runs, min(rivals, key=mean), figure, slack)


def _claim(
    name: str, runs: Runs, rival: str, figure: Figure, slack: float = 0.0
) -> Claim:
    ours, theirs = runs[JUDGED], runs[rival]
    seeds = sorted(ours.keys() & theirs.keys())
    mean, low, high = ratio(
        [figure(ours[seed]) for seed in seeds],
        [figure(theirs[seed]) for seed in seeds],
    )
    state: State = "missed"
    if mean <= 1 + slack:
        state = "met"
    elif low <= 1:
        state = "noise"
    return Claim(name=name, rival=rival, ratio=mean, low=low, high=high, state=state)


def _plenty(runs: Runs) -> Claim:
    """Judge that nothing is moved, and nothing lost, where memory is plentiful."""
    moved = sum(outcome.moved_tokens for outcome in runs[JUDGED].values())
    claim = _claim("idle cost", runs, UNGATED, job_s, _NOTHING)
    state = "missed" if moved else claim.state
    return msgspec.structs.replace(claim, moved_tokens=moved, state=state)
