"""The chance that a call still runs, and how long it still will, given its age.

A curve is the survival function S at a few points of time, straight lines between them
and a vertical drop at a time limit, with the area below it to the right of each point.
The mean residual life at t is that area divided by S(t): one search, two additions.

A curve is estimated by Kaplan and Meier's product limit ("Nonparametric estimation from
incomplete observations", JASA 53, 1958) over the bins of a sketch and a few calls that
live and die as another curve, the prior, says. Some of these begin with the others, as
in the estimate of Susarla and Van Ryzin (JASA 71, 1976), and some are still there at
every age, as in Hjort's (Annals of Statistics 18, 1990): of very old calls a sketch has
seen one or two, and must not think that it knows when such calls end. Where the sketch
has seen much, the prior does not matter; where nothing, nothing else does.
"""

import heapq
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import add, itemgetter, neg

from .sketch import BINS, EDGES_S, Sketch, bin_of, limit_key

_MOST_DROPS = 8
"""Time limits in a curve, its own and inherited ones: they take memory."""
_NEGLIGIBLE = 1e-3
"""An inherited limit that takes less than this share of calls is none of its own."""
_LEAST = 1e-30
"""Survival never falls to zero: something that lasts impossibly long still ends."""


class Curve:
    """A survival function; immutable. All times are seconds since the call began."""

    __slots__ = ("_area", "_survival", "_times")

    def __init__(self, times: Sequence[float], survival: Sequence[float]) -> None:
        """Take S at *times*, which ascend; equal neighbours are a drop."""
        area = survival[-1] * times[-1]
        areas = [area]
        for place in range(len(times) - 2, -1, -1):
            width_s = times[place + 1] - times[place]
            area += (survival[place] + survival[place + 1]) / 2 * width_s
            areas.append(area)
        areas.reverse()
        self._times = tuple(times)
        self._survival = array("f", survival)
        self._area = array("f", areas)

    @property
    def drops(self) -> list[tuple[float, float]]:
        """Each time limit, and the share of all calls that end there."""
        times, survival = self._times, self._survival
        return [
            (times[place], survival[place - 1] - survival[place])
            for place in range(1, len(times))
            if times[place - 1] == times[place]
        ]

    def at(self, elapsed_s: float) -> float:
        """Return the chance that a call lasts longer than *elapsed_s*."""
        if elapsed_s <= 0.0:
            return 1.0
        times, survival = self._times, self._survival
        right = bisect_right(times, elapsed_s)
        if right == len(times):
            # Expected remaining = elapsed, which is what S falling as 1 / t² means.
            return survival[-1] * (times[-1] / elapsed_s) ** 2
        before, before_s = survival[right - 1], times[right - 1]
        part = (elapsed_s - before_s) / (times[right] - before_s)
        return before + (survival[right] - before) * part

    def outlives(self, elapsed_s: float, more_s: float) -> float:
        """Return the chance that what has lasted *elapsed_s* lasts *more_s* more."""
        if more_s <= 0.0:
            return 1.0
        elapsed_s = max(0.0, elapsed_s)
        return min(1.0, self.at(elapsed_s + more_s) / self.at(elapsed_s))

    def along(self, times: Sequence[float]) -> Sequence[float]:
        """Return S at *times*; the first of two equal ones is just before the drop."""
        if times == self._times:
            return self._survival
        values = [self.at(elapsed_s) for elapsed_s in times]
        for place in range(1, len(times)):
            if times[place - 1] == times[place]:
                values[place - 1] = self._just_before(times[place])
        return values

    def _just_before(self, elapsed_s: float) -> float:
        place = bisect_left(self._times, elapsed_s)
        known = self._times[place] == elapsed_s
        return self._survival[place] if known else self.at(elapsed_s)

    def remaining_s(self, elapsed_s: float) -> float:
        """Return the mean residual life."""
        times = self._times
        if elapsed_s <= 0.0:
            return self._area[0]
        right = bisect_right(times, elapsed_s)
        if right == len(times):
            return elapsed_s
        survival, before_s, after_s = self._survival, times[right - 1], times[right]
        before, after = survival[right - 1], survival[right]
        now = before + (after - before) * (elapsed_s - before_s) / (after_s - before_s)
        return (self._area[right] + (now + after) / 2 * (after_s - elapsed_s)) / now

    def quantile_s(self, share: float, elapsed_s: float) -> float:
        """Return how much longer it takes until *share* of such calls have ended."""
        wanted = (1.0 - share) * self.at(elapsed_s)
        times, survival = self._times, self._survival
        right = bisect_left(survival, -wanted, key=neg)
        if right == len(times):
            ends_s = times[-1] * math.sqrt(survival[-1] / wanted)
        elif right == 0:
            ends_s = 0.0
        else:
            drop = survival[right - 1] - survival[right]
            part = (survival[right - 1] - wanted) / drop
            ends_s = times[right - 1] + part * (times[right] - times[right - 1])
        return max(0.0, ends_s - max(0.0, elapsed_s))


def lindy(floor_s: float) -> Curve:
    """Return the curve of expected remaining = elapsed + *floor_s*.

    That is S(t) = (1 + t / floor) ** -2, Lomax's distribution with shape 2.
    """
    return Curve(EDGES_S, [(1.0 + edge_s / floor_s) ** -2 for edge_s in EDGES_S])


def estimate(
    sketch: Sketch, prior: Curve, *, prior_calls: float, prior_survivors: float
) -> Curve:
    """Return the curve of what *sketch* saw, leaning on *prior*.

    As many as *prior_calls* begin as *prior* says, and *prior_survivors* more are there
    at every age.

    Cancelled calls count as running until the end of their bin, as deaths go before
    losses there. Those at risk are summed up from the right, so that they stay exact
    where few are left.
    """
    drops = _drops(sketch, prior, prior_calls)
    times, deaths, losses = _intervals(sketch, drops)
    at_risk = list(accumulate(map(add, reversed(deaths), reversed(losses))))
    expected = prior.along(times)
    survival, now = [1.0], 1.0
    for place, (died, alive) in enumerate(zip(deaths, reversed(at_risk), strict=True)):
        before, after = expected[place], expected[place + 1]
        weight = prior_calls * before + prior_survivors
        hazard = (died + weight * (1.0 - after / before)) / (alive + weight)
        now = max(now * (1.0 - hazard), _LEAST)
        survival.append(now)
    return Curve(times, survival)


def _drops(sketch: Sketch, prior: Curve, prior_calls: float) -> dict[float, float]:
    """Choose the time limits of a curve: how many calls of *sketch* met each.

    Inherited limits are among them, with the sketch's calls or with none.
    """
    chosen: dict[int, tuple[float, float, float]] = {}
    inherited = [
        (limit_s, 0.0, share * prior_calls)
        for limit_s, share in prior.drops
        if share > _NEGLIGIBLE
    ]
    own = [
        (limit_s, weight / sketch.unit, weight / sketch.unit)
        for limit_s, weight in sketch.limits()
        if limit_s < EDGES_S[-1]
    ]
    for limit_s, calls, claim in (*inherited, *own):
        key = limit_key(limit_s)
        known_s, known_calls, known_claim = chosen.get(key, (0.0, 0.0, 0.0))
        chosen[key] = max(limit_s, known_s), calls + known_calls, claim + known_claim
    heaviest = heapq.nlargest(_MOST_DROPS, chosen.values(), key=itemgetter(2))
    return {limit_s: calls for limit_s, calls, _ in sorted(heaviest)}


def _intervals(
    sketch: Sketch, drops: dict[float, float]
) -> tuple[Sequence[float], list[float], list[float]]:
    """Return points of time, the calls that ended between them, and those lost there.

    Without drops the points are the edges of the bins. A drop adds its time twice, and
    the interval of no length between holds the calls that met the limit.
    """
    unit = sketch.unit
    ended = [weight / unit for weight in sketch.ended]
    lost = [weight / unit for weight in sketch.censored or ()] or [0.0] * BINS
    kept = {limit_key(limit_s) for limit_s in drops}
    for limit_s, weight in sketch.limits():
        if limit_key(limit_s) not in kept:
            ended[bin_of(limit_s)] += weight / unit
    if not drops:
        return EDGES_S, ended, lost
    times, deaths, losses = [0.0], list[float](), list[float]()
    waiting = sorted(drops.items(), reverse=True)
    for where, after_s in enumerate(EDGES_S[1:]):
        per_s = ended[where] / (after_s - EDGES_S[where])
        while waiting and waiting[-1][0] < after_s:
            limit_s, calls = waiting.pop()
            deaths += per_s * (limit_s - times[-1]), calls
            losses += 0.0, 0.0
            times += limit_s, limit_s
        deaths.append(per_s * (after_s - times[-1]))
        losses.append(lost[where])
        times.append(after_s)
    return tuple(times), deaths, losses
