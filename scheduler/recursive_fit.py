"""A cost as a sum of at most three terms, learned from one observation after another.

The cost is ``k0*x0 + k1*x1 + k2*x2`` with no coefficient below zero, fitted by
recursive least squares to the *ratio* of what was measured to what was expected, so
that a copy of 1 MB teaches as much as one of 1 GB. What makes it fit for live use:

- **From the first observation on.** What inputs have not told apart yet counts as
  proportional to ``x0``: every other term has a prior around zero (ridge).
- **Outliers.** A surprise enters the fit only up to twice the usual spread (Huber).
- **Forgetting in the direction of the news only** (Cao and Schwartz, Automatica 36,
  2000): a thousand copies of one size do not wipe out what the other sizes have taught.
- **Changes.** Surprises of one sign add up (CUSUM, Page, Biometrika 41, 1954); four
  large ones in a row mean that the world has changed. Then the whole cost is scaled to
  the news, and what was known counts no more than a single observation.

A query is three multiplications, an observation some hundred.
"""

from collections import deque
from math import exp, hypot, inf, isfinite, log, sqrt
from statistics import median
from typing import Annotated, Final, Self

import msgspec

from .errors import InvalidSetting
from .symmetric import Symmetric, Vector, inverted, non_negative, product

# The information of the past that an observation replaces in its own direction.
_FORGETTING: Final = 0.03
# A term's prior: this share of the cost, more or less, one standard deviation.
_PRIOR_SHARE: Final = 0.5
# The spread before anything is known of it, and the least that a clock can tell apart.
_FIRST_SPREAD: Final = 0.3
_LEAST_SPREAD: Final = 0.01
# Surprises enter up to this many spreads.
_CLIP: Final = 2.0
# The change detector, in spreads: what is no surprise, the most that one observation
# can say, and the sum that means a change: four observations at the least.
_DRIFT: Final = 0.75
_LOUDEST: Final = 3.0
_CHANGE: Final = 8.0
_REMEMBERED: Final = 8
# An expectation is at least this share of what was measured, if only for its logarithm.
_LEAST_RATIO: Final = 1e-3
# From the mean distance of two normal deviates to their standard deviation.
_DEVIATION: Final = 0.8862
# Information below this is a rounding error.
_NOTHING: Final = 1e-12
# The relative standard error at which confidence is one half.
_HALF_CONFIDENCE: Final = 0.25

_ZERO: Final = (0.0, 0.0, 0.0)

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NonNegative = Annotated[float, msgspec.Meta(ge=0)]


class FitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that a fit has learned, as plain data.

    ``information`` and ``moments`` are the normal equations, ``prior`` the diagonal
    that stands for what is not known, ``weight`` the observations that still count.
    """

    observations: Annotated[int, msgspec.Meta(ge=1)]
    weight: _Positive
    spread: _Positive
    information: Symmetric
    moments: Vector
    prior: tuple[_NonNegative, _NonNegative, _NonNegative]


class RecursiveFit:
    """Learns ``coefficients``; ``observe`` says what was measured.

    *floors* belong to the priors of the three terms. A term's prior is that it makes up
    half of the first cost, give or take; where its input was smaller then than its
    floor times ``x0``, half of the cost at that input.
    """

    __slots__ = (
        "_excess",
        "_floors",
        "_information",
        "_inverse",
        "_latest",
        "_moments",
        "_prior",
        "_recent",
        "_rising",
        "_shortfall",
        "_unbounded",
        "_weight",
        "coefficients",
        "observations",
        "spread",
    )

    def __init__(self, *, floors: Vector) -> None:
        self._floors = floors
        self.observations = 0
        self.coefficients: Vector = _ZERO
        self.spread = _FIRST_SPREAD
        self._weight = 0.0
        self._information = Symmetric()
        self._inverse = Symmetric()
        self._moments: Vector = _ZERO
        self._prior: Vector = _ZERO
        # The coefficients before negative ones were ruled out; what is forgotten has to
        # agree with them, else forgetting would push the fit aside.
        self._unbounded: Vector = _ZERO
        self._latest = self._excess = self._shortfall = 0.0
        self._rising = False
        self._recent: deque[tuple[Vector, float]] = deque(maxlen=_REMEMBERED)

    @classmethod
    def from_record(cls, record: FitRecord, *, floors: Vector) -> Self:
        """Go on where *record* ended, but for surprises that were adding up.

        Raises InvalidSetting if it makes no sense.
        """
        numbers = (*record.information, *record.moments, *record.prior)
        if not all(map(isfinite, (*numbers, record.weight, record.spread))):
            raise InvalidSetting("a figure of a fitted cost is not finite")
        fit = cls(floors=floors)
        fit.observations, fit.spread = record.observations, record.spread
        fit._weight, fit._prior = record.weight, record.prior
        fit._information, fit._moments = record.information, record.moments
        fit._solve()
        if not any(fit.coefficients):
            raise InvalidSetting("the figures of a fitted cost contradict each other")
        return fit

    def record(self) -> FitRecord | None:
        """Return all that was learned, or None if that is nothing."""
        if not self.observations:
            return None
        return FitRecord(
            observations=self.observations,
            weight=self._weight,
            spread=self.spread,
            information=self._information,
            moments=self._moments,
            prior=self._prior,
        )

    def cost(self, x: Vector) -> float | None:
        """Return the expected cost, or None before the first observation."""
        if not self.observations:
            return None
        k0, k1, k2 = self.coefficients
        return k0 * x[0] + k1 * x[1] + k2 * x[2]

    def confidence(self, x: Vector) -> float:
        """Return how far to believe ``cost(x)``: 0 not at all, 1 wholly.

        One half means a standard error of a quarter. Far from everything that was
        observed it is low, however many observations there are.
        """
        expected = self.cost(x)
        if not expected:
            return 0.0
        error = self.spread * self._leverage(x, expected)
        return 1 / (1 + (error / _HALF_CONFIDENCE) ** 2)

    def observe(self, x: Vector, measured: float) -> None:
        """Learn that input *x* cost *measured*; what is not above zero teaches nothing.

        Inputs are amounts: ``x[0]`` is 1 or more, the other two 0, or 1 or more.
        """
        if not 0 < measured < inf:
            return
        self.observations += 1
        if self.observations == 1:
            self._begin(x, measured)
            return
        expected, surprise = self._compare(x, measured)
        # What lies far from all that was seen before is expected to surprise.
        widening = hypot(1.0, self._leverage(x, expected))
        usual = self.spread * widening
        if self._has_changed(surprise / usual, (x, measured)):
            self._begin_anew()
            return
        self._note_spread(surprise / widening)
        limit = _CLIP * usual
        self._absorb(x, expected, max(-limit, min(limit, surprise)))

    # ---- learning --------------------------------------------------------------------

    def _begin(self, x: Vector, measured: float) -> None:
        """Take the first observation for a cost in proportion to ``x0``."""
        share = measured * _PRIOR_SHARE
        _, floor1, floor2 = self._floors
        scale1 = max(x[1], floor1 * x[0]) / share
        scale2 = max(x[2], floor2 * x[0]) / share
        # A term whose input always is zero stays at zero.
        self._prior = (0.0, scale1 * scale1 or 1.0, scale2 * scale2 or 1.0)
        self._absorb(x, measured, 0.0)

    def _compare(self, x: Vector, measured: float) -> tuple[float, float]:
        """Return what *x* was expected to cost, and the logarithm of the ratio."""
        k0, k1, k2 = self.coefficients
        expected = max(k0 * x[0] + k1 * x[1] + k2 * x[2], measured * _LEAST_RATIO)
        return expected, log(measured / expected)

    def _leverage(self, x: Vector, expected: float) -> float:
        """Return the standard error of a cost, in spreads of one observation."""
        x0, x1, x2 = x
        i = self._inverse
        square = (
            x0 * (i.a00 * x0 + 2 * (i.a01 * x1 + i.a02 * x2))
            + x1 * (i.a11 * x1 + 2 * i.a12 * x2)
            + x2 * i.a22 * x2
        )
        return sqrt(max(0.0, square)) / expected

    def _note_spread(self, surprise: float) -> None:
        # Of neighbours: when everything shifts, the spread around it stays the same.
        distance = abs(surprise - self._latest) * _DEVIATION
        self._latest = surprise
        size = min(distance, _LOUDEST * self.spread)
        gain = 1 / (1 + self._weight)
        self.spread = max(_LEAST_SPREAD, self.spread + gain * (size - self.spread))

    def _absorb(self, x: Vector, expected: float, surprise: float) -> None:
        """Take *x* into the normal equations, at a cost off by *surprise*."""
        # Divided by the geometric mean of both, high and low surprises weigh alike.
        target = exp(surprise / 2)
        unit = 1 / (expected * target)
        z0, z1, z2 = x[0] * unit, x[1] * unit, x[2] * unit
        a00, a01, a02, a11, a12, a22 = self._information
        b0, b1, b2 = self._moments
        v0 = a00 * z0 + a01 * z1 + a02 * z2
        v1 = a01 * z0 + a11 * z1 + a12 * z2
        v2 = a02 * z0 + a12 * z1 + a22 * z2
        known = v0 * z0 + v1 * z1 + v2 * z2
        share = _FORGETTING / known if known > _NOTHING else 0.0
        u0, u1, u2 = self._unbounded
        f0, f1, f2 = share * v0, share * v1, share * v2
        said = v0 * u0 + v1 * u1 + v2 * u2
        self._moments = (
            b0 - f0 * said + target * z0,
            b1 - f1 * said + target * z1,
            b2 - f2 * said + target * z2,
        )
        self._information = Symmetric(
            a00 - f0 * v0 + z0 * z0,
            a01 - f0 * v1 + z0 * z1,
            a02 - f0 * v2 + z0 * z2,
            a11 - f1 * v1 + z1 * z1,
            a12 - f1 * v2 + z1 * z2,
            a22 - f2 * v2 + z2 * z2,
        )
        self._weight += 1 - _FORGETTING * self._weight
        self._solve()

    def _solve(self) -> None:
        """Bring inverse and coefficients up to date with the normal equations."""
        a00, a01, a02, a11, a12, a22 = self._information
        square = self.spread * self.spread
        r0, r1, r2 = self._prior
        equations = Symmetric(
            a00 + square * r0, a01, a02, a11 + square * r1, a12, a22 + square * r2
        )
        self._inverse = inverted(equations)
        self._unbounded = solution = product(self._inverse, self._moments)
        if min(solution) < 0 or solution == _ZERO:
            solution = non_negative(equations, self._moments)
        self.coefficients = solution

    # ---- changes ---------------------------------------------------------------------

    def _has_changed(self, loudness: float, seen: tuple[Vector, float]) -> bool:
        """Add up surprises of one sign; they are in units of what is usual."""
        loudness = max(-_LOUDEST, min(_LOUDEST, loudness))
        # Invariant: what is remembered are the latest loud surprises, all of one sign.
        if abs(loudness) <= _DRIFT or (loudness > 0) is not self._rising:
            self._recent.clear()
        self._rising = loudness > 0
        self._recent.append(seen)
        self._excess = max(0.0, self._excess + loudness - _DRIFT)
        self._shortfall = max(0.0, self._shortfall - loudness - _DRIFT)
        return max(self._excess, self._shortfall) >= _CHANGE

    def _begin_anew(self) -> None:
        """Scale the whole cost to the latest loud surprises, and learn from them."""
        surprises = [self._compare(*seen)[1] for seen in self._recent]
        middle = median(surprises)
        # The run may have begun with a last one that was merely loud.
        news = [
            seen
            for seen, surprise in zip(self._recent, surprises, strict=True)
            if surprise / middle > 0.5
        ]
        self._rescale(exp(middle))
        self._latest = self._excess = self._shortfall = 0.0
        self._recent.clear()
        for x, measured in news:
            expected, surprise = self._compare(x, measured)
            widening = hypot(1.0, self._leverage(x, expected))
            self._note_spread(surprise / widening)
            self._absorb(x, expected, surprise)

    def _rescale(self, factor: float) -> None:
        """Multiply the cost; from now on all of it counts as one observation."""
        k0, k1, k2 = self.coefficients
        scaled = (k0 * factor, k1 * factor, k2 * factor)
        square = factor * factor
        r0, r1, r2 = self._prior
        self._prior = (r0 / square, r1 / square, r2 / square)
        share = 1 / (self._weight * square)
        self._information = Symmetric(*(share * a for a in self._information))
        self._moments = product(self._information, scaled)
        self._weight = 1.0
        self.spread = max(self.spread, _FIRST_SPREAD)
        self._solve()
