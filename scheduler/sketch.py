"""What was seen of one kind of call: decayed weights over time, in bounded memory.

Times fall into bins, ten to a decade from 1 ms to 100,000 s, so that a bin is a quarter
wider than the one before and memory does not grow with history. A call that ran into
its time limit is kept apart, with its time: a limit is an atom, and a bin would smooth
it. A call that was cancelled says only that it would have lasted longer.

Recent calls weigh more. Instead of shrinking what is there, each call weighs a little
more than the one before it (``unit``), and the sums are scaled down now and then; only
ratios of weights mean anything.
"""

import math
from array import array
from bisect import bisect_right
from typing import Annotated

import msgspec

from .errors import InvalidSetting

EDGES_S: tuple[float, ...] = (0.0, *(10 ** (step / 10 - 3) for step in range(81)))
"""Where bins begin and end, in seconds; what lasts longer counts in the last one."""

BINS = len(EDGES_S) - 1
MOST_LIMITS = 4
"""Time limits kept apart in a sketch; the lightest of more becomes an ordinary end."""

_LIMITS_PER_E = 50
"""Limits that differ by less than about 1 / 50 count as the same."""
_LARGEST_UNIT = 2.0**20
"""Weights are 32-bit floats; beyond this they are scaled down, long before 2 ** 127."""
_LARGEST_RECORDED = 1e30
_DRIFT_RATE = 1 / 16
_DRIFT_ALARM = 0.26
"""Five standard deviations, sqrt(rate / (2 - rate) / 12) each, of the mean rank that
independent calls from the learned distribution have; calls of one session are alike."""
_DRIFT_FORGETS = 32.0
_RECENT_CALLS = 16
_DRIFT_NEEDS_CALLS = 20.0

Weight = Annotated[float, msgspec.Meta(ge=0)]
Calls = Annotated[int, msgspec.Meta(ge=0)]


class SketchRecord(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A sketch as it is written; weights by bin, zeros left out."""

    unit: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    drift: float = 0.0
    recent: bytes = b""
    """The bins of the last calls, oldest first."""
    count: Calls = 0
    errors: Calls = 0
    timeouts: Calls = 0
    cancelled: Calls = 0
    ended: dict[int, Weight] = {}
    censored: dict[int, Weight] = {}
    limits: tuple[tuple[Weight, Weight], ...] = ()
    """Each limit in seconds, and its weight."""


def bin_of(seconds: float) -> int:
    """Return the bin that *seconds* fall into."""
    return min(bisect_right(EDGES_S, seconds), BINS) - 1


class Sketch:
    """Learns one call at a time; constant memory, constant time.

    A call weighs half when *half_life_calls* more have come; None never forgets.
    Where *watches_drift*, all but the last 16 calls nearly cease to count as soon as
    recent ones are clearly slower or faster than the rest.
    """

    __slots__ = (
        "_drift",
        "_growth",
        "_recent",
        "_watches_drift",
        "cancelled",
        "censored",
        "count",
        "ended",
        "errors",
        "limits_s",
        "limits_weight",
        "timeouts",
        "unit",
    )

    def __init__(
        self, *, half_life_calls: float | None = None, watches_drift: bool = False
    ) -> None:
        self._growth = 1.0 if half_life_calls is None else 2 ** (1 / half_life_calls)
        self._watches_drift = watches_drift
        self._drift = 0.0
        self._recent = b""
        self.unit = 1.0
        self.count = self.errors = self.timeouts = self.cancelled = 0
        self.ended = array("f", bytes(4 * BINS))
        # Most tools never time out, and are never cancelled.
        self.censored: array[float] | None = None
        self.limits_s: array[float] | None = None
        self.limits_weight: array[float] | None = None

    @property
    def effective_calls(self) -> float:
        """How many calls of today's weight all that was seen amounts to."""
        weight = math.fsum(self.ended) + math.fsum(self.limits_weight or ())
        return (weight + math.fsum(self.censored or ())) / self.unit

    def observe(self, seconds: float, status: str) -> None:
        """Add a call that ended (ok, error, timeout) or was cancelled at *seconds*."""
        self.count += 1
        self.unit *= self._growth
        if self.unit > _LARGEST_UNIT:
            self._rescale()
        if status == "timeout":
            self.timeouts += 1
            self._add_limit(seconds, self.unit)
            return
        where = bin_of(seconds)
        if status == "cancelled":
            self.cancelled += 1
            self._add_censored(where, self.unit)
            return
        if status == "error":
            self.errors += 1
        if self._watches_drift:
            self._watch(where)
        self.ended[where] += self.unit

    def merge(self, other: "Sketch") -> None:
        """Add what *other* has seen, as if both had been seen by now."""
        scale = self.unit / other.unit
        self.count += other.count
        self.errors += other.errors
        self.timeouts += other.timeouts
        self.cancelled += other.cancelled
        for where, weight in enumerate(other.ended):
            self.ended[where] += weight * scale
        for where, weight in enumerate(other.censored or ()):
            if weight:
                self._add_censored(where, weight * scale)
        for limit_s, weight in other.limits():
            self._add_limit(limit_s, weight * scale)

    def limits(self) -> list[tuple[float, float]]:
        """List each time limit that was met, in seconds, and its weight."""
        if self.limits_s is None or self.limits_weight is None:
            return []
        return list(zip(self.limits_s, self.limits_weight, strict=True))

    def record(self) -> SketchRecord:
        """Return all that was learned."""
        return SketchRecord(
            unit=self.unit,
            drift=self._drift,
            recent=self._recent,
            count=self.count,
            errors=self.errors,
            timeouts=self.timeouts,
            cancelled=self.cancelled,
            ended={where: w for where, w in enumerate(self.ended) if w},
            censored={where: w for where, w in enumerate(self.censored or ()) if w},
            limits=tuple(self.limits()),
        )

    def load(self, record: SketchRecord) -> None:
        """Take over what *record* says; raise InvalidSetting where it cannot be."""
        weights = [*record.ended.values(), *record.censored.values()]
        weights += [number for limit in record.limits for number in limit]
        for number in (*weights, record.unit, record.drift):
            if not abs(number) <= _LARGEST_RECORDED:
                raise InvalidSetting(f"a weight or time of {number} is not possible")
        for where in (*record.ended, *record.censored, *record.recent):
            if not 0 <= where < BINS:
                raise InvalidSetting(f"there is no bin {where}, only 0 to {BINS - 1}")
        self.unit, self._drift, self.count = record.unit, record.drift, record.count
        self.errors, self.timeouts = record.errors, record.timeouts
        self.cancelled, self._recent = record.cancelled, record.recent[-_RECENT_CALLS:]
        for where, weight in record.ended.items():
            self.ended[where] = weight
        for where, weight in record.censored.items():
            self._add_censored(where, weight)
        for limit_s, weight in record.limits:
            self._add_limit(limit_s, weight)

    def _add_censored(self, where: int, weight: float) -> None:
        if self.censored is None:
            self.censored = array("f", bytes(4 * BINS))
        self.censored[where] += weight

    def _add_limit(self, seconds: float, weight: float) -> None:
        """Add to the limit of about this time; the longest of a limit's calls is kept.

        A call that is a little late must not seem to have survived its limit.
        """
        if self.limits_s is None or self.limits_weight is None:
            self.limits_s, self.limits_weight = array("f"), array("f")
        key = limit_key(seconds)
        for place, limit_s in enumerate(self.limits_s):
            if limit_key(limit_s) == key:
                self.limits_s[place] = max(limit_s, seconds)
                self.limits_weight[place] += weight
                return
        self.limits_s.append(seconds)
        self.limits_weight.append(weight)
        if len(self.limits_s) > MOST_LIMITS:
            lightest = self.limits_weight.index(min(self.limits_weight))
            where = bin_of(self.limits_s.pop(lightest))
            self.ended[where] += self.limits_weight.pop(lightest)

    def _watch(self, where: int) -> None:
        """Forget faster when the mean rank of recent calls is far from 1/2."""
        below = sum(self.ended[:where])
        at = self.ended[where]
        weight = below + at + sum(self.ended[where + 1 :])
        if weight >= _DRIFT_NEEDS_CALLS * self.unit:
            rank = (below + at / 2) / weight
            self._drift += _DRIFT_RATE * (rank - 0.5 - self._drift)
        if abs(self._drift) > _DRIFT_ALARM:
            self.unit *= _DRIFT_FORGETS
            for recent in self._recent:
                self.ended[recent] += self.unit
            self._drift, self._recent = 0.0, b""
        self._recent = self._recent[1 - _RECENT_CALLS :] + bytes((where,))

    def _rescale(self) -> None:
        for weights in (self.ended, self.censored, self.limits_weight):
            if weights is not None:
                for place, weight in enumerate(weights):
                    weights[place] = weight / self.unit
        self.unit = 1.0


def limit_key(seconds: float) -> int:
    """Return equal numbers for limits that are the same but for the clock's error."""
    return round(math.log(max(seconds, 1e-3)) * _LIMITS_PER_E)
