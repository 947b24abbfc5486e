"""Means and ratios over replays of different orders, with 95 % intervals.

Replays of the same order under two policies are compared with each other, never with
those of another order: what one order makes hard for all of them cancels out.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Student's t, two-sided 95 %, for 1 to 10 degrees of freedom; more are taken for 10,
# which widens an interval rather than narrowing it.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Interval(NamedTuple):
    """A mean and what it lies between; one value alone says nothing of that."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values and its interval.

    >>> interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.4843..., high=4.4843...)
    """
    mean = statistics.fmean(values)
    degrees = len(values) - 1
    if degrees < 1:
        return Interval(mean, -math.inf, math.inf)
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = _T[min(degrees, len(_T)) - 1] * error
    return Interval(mean, mean - half, mean + half)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the geometric mean of the pairs' ratios; a zero over a zero counts as 1.

    >>> ratio([2.0, 4.0], [1.0, 2.0])
    Interval(mean=2.0, low=2.0, high=2.0)
    """
    logs = [_log(our) - _log(their) for our, their in zip(ours, theirs, strict=True)]
    mean, low, high = interval(logs)
    return Interval(math.exp(mean), _exp(low), _exp(high))


def _log(value: float) -> float:
    return math.log(max(value, 1e-9))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
