"""What a sweep prints: a table for each load, the verdict, the study beside its past.

Behind ``±`` is half of a 95 % interval over the orders of the sessions. Tokens are
means over orders, seconds too; ``progress`` is explained in ``lives``.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from .crew import Point, Results
from .intervals import Interval, interval, ratio
from .one_run import Outcome
from .study import BEST_S, study_job_s
from .verdict import (
    CLAIMS,
    JUDGED,
    Claim,
    Figure,
    is_realisable,
    job_s,
    judge,
    ttft_max_s,
    ttft_p99_s,
)

Outcomes = Mapping[int, Outcome]

_HEAD = (
    f"{'pressure':>8}  {'policy':<17} {'job s':>15} {'auto ÷ it':>18} {'delay s':>9}"
    f" {'ttft p50':>9} {'p90':>8} {'p99':>14} {'max':>8} {'re-pref.':>9}"
    f" {'moved':>7} {'progress p50':>12} {'p10':>5} {'forced':>6} {'busy':>5}"
)
_STUDY_HEAD = (
    f"{'policy':<17} {'job s, its order':>16} {'all orders':>15} {'all jobs':>9}"
    f" {'ttft p50':>9} {'p99':>8} {'max':>8} {'re ÷ new':>8} {'moved ÷ new':>11}"
)


def print_sweep(
    points: Sequence[Point], results: Results, policies: Sequence[str]
) -> Mapping[int, Sequence[Claim]]:
    """Print a table for each load, then the verdict; return the claims by point."""
    claims: dict[int, Sequence[Claim]] = {}
    load = None
    for number, point in enumerate(points):
        if point.load is not load:
            load = point.load
            print(f"\n{load.description}\n{_HEAD}")
        runs = {policy: results.runs(number, policy) for policy in policies}
        for policy, outcomes in runs.items():
            if outcomes:
                print(_row(point, policy, outcomes, runs.get(JUDGED, {})))
        if found := judge(runs, point.pressure):
            claims[number] = found
    for share in dict.fromkeys(point.load.share for point in points):
        own = [number for number in claims if points[number].load.share == share]
        print(f"\nVerdict, {share} sessions")
        _print_verdict({number: claims[number] for number in own}, points)
    return claims


def _row(point: Point, policy: str, outcomes: Outcomes, judged: Outcomes) -> str:
    def mean(figure: Figure) -> float:
        return statistics.fmean(figure(outcome) for outcome in outcomes.values())

    return (
        f"{point.pressure:>8.3g}  {policy:<17} {_pm(outcomes, job_s):>15}"
        f" {_paired(judged, outcomes):>18} {mean(lambda o: o.delay_s):>9.1f}"
        f" {mean(lambda o: o.report.ttft_s.p50 or 0.0):>9.2f}"
        f" {mean(lambda o: o.report.ttft_s.p90 or 0.0):>8.1f}"
        f" {_pm(outcomes, ttft_p99_s):>14} {mean(ttft_max_s):>8.1f}"
        f" {_tokens(mean(lambda o: o.reprefilled_tokens)):>9}"
        f" {_tokens(mean(lambda o: o.moved_tokens)):>7}"
        f" {mean(lambda o: _quantile(o.progress, 0.5)):>12.2f}"
        f" {mean(lambda o: _quantile(o.progress, 0.1)):>5.2f}"
        f" {mean(lambda o: o.report.forced_admissions):>6.1f}"
        f" {mean(lambda o: o.busy_share):>5.2f}"
    )


def _pm(outcomes: Outcomes, figure: Figure) -> str:
    spread = interval([figure(outcome) for outcome in outcomes.values()])
    return f"{spread.mean:.1f}{_half(spread)}"


def _half(spread: Interval) -> str:
    return f" ±{spread.half:.1f}" if math.isfinite(spread.half) else ""


def _paired(judged: Outcomes, outcomes: Outcomes) -> str:
    seeds = sorted(judged.keys() & outcomes.keys())
    if judged is outcomes or not seeds:
        return ""
    mean, low, high = ratio(
        [job_s(judged[seed]) for seed in seeds],
        [job_s(outcomes[seed]) for seed in seeds],
    )
    return f"{mean:.3f} [{low:.3f} {high:.3f}]"


def _tokens(count: float) -> str:
    """Return a count in three digits.

    >>> _tokens(12_345_678), _tokens(0)
    ('12.3M', '0')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:#.3g}".rstrip(".") + unit
    return f"{count:.0f}"


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank quantile."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


# ---- the verdict ---------------------------------------------------------------------


def _print_verdict(
    claims: Mapping[int, Sequence[Claim]], points: Sequence[Point]
) -> None:
    """Print how every claim stands, which were not kept, and how often each was."""
    cells = "".join(f" {name:<30}" for name in CLAIMS)
    print(f"{'auto ÷ the best other policy':<42}{cells}".rstrip())
    for number, found in claims.items():
        by_name = {claim.name: _cell(claim) for claim in found}
        cells = "".join(f" {by_name.get(name, ''):<30}" for name in CLAIMS)
        print(f"{points[number].name:<42}{cells}".rstrip())
    for number, found in claims.items():
        for claim in found:
            if claim.state == "missed":
                print(
                    f"not kept: {points[number].name}, {claim.name}, "
                    f"{claim.outcome} against {claim.rival}: {claim.ratio:.3f} "
                    f"[{claim.low:.3f} {claim.high:.3f}]"
                )
    for line in _sums([claim for found in claims.values() for claim in found]):
        print(line)


def _cell(claim: Claim) -> str:
    return f"{claim.ratio:.3f} {claim.rival} {claim.state}"


def _sums(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield how often each claim was met."""
    counts = Counter((claim.name, claim.state) for claim in claims)
    for name in CLAIMS:
        met, noise, missed = (counts[name, s] for s in ("met", "noise", "missed"))
        if points := met + noise + missed:
            yield (
                f"  {name:<12} met at {met} of {points} points, within noise at "
                f"{noise}, missed at {missed}"
            )


# ---- the study -----------------------------------------------------------------------


def print_study(
    points: Sequence[Point], results: Results, policies: Sequence[str]
) -> Mapping[int, Sequence[Claim]]:
    """Print a table for each setting of the study; it has its own claim, in words."""
    for number, point in enumerate(points):
        print(f"\n{point.load.description}")
        print(f"{point.kv_tokens:,} KV tokens, pressure {point.pressure:.2f}")
        print(_STUDY_HEAD)
        for policy in policies:
            outcomes = results.runs(number, policy)
            if 0 in outcomes:
                print(_study_row(policy, outcomes))
        ours = results.runs(number, JUDGED)
        if 0 in ours:
            excess = study_job_s(ours[0]) / BEST_S[point.load.accelerator] - 1
            state = "met" if excess <= 0 else "missed by"
            print(f"{JUDGED} against the study's best line: {state} {excess:+.1%}")
    return {}


def _study_row(policy: str, outcomes: Outcomes) -> str:
    first = outcomes[0]
    ttft = first.report.ttft_s
    note = "" if is_realisable(policy) else "  (no real policy)"
    every: Callable[[Outcome], float] = study_job_s
    return (
        f"{policy:<17} {study_job_s(first):>16.1f} {_pm(outcomes, every):>15}"
        f" {job_s(first):>9.1f} {ttft.p50 or 0.0:>9.2f} {ttft.p99 or 0.0:>8.1f}"
        f" {ttft.max or 0.0:>8.1f} {first.reprefilled_tokens / first.new_tokens:>8.2f}"
        f" {first.moved_tokens / first.new_tokens:>11.2f}{note}"
    )
