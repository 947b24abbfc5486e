"""``progress-ttl``: state is pinned for as long as that is expected to pay.

The rule of vllm-router's program scheduling (its pull request 286, read in the shipped
package 0.1.17) and of openJiuwen's AgentInfer 0.2. How long a session stays away is
taken as lognormal, fitted to the last 100 gaps of all sessions, whatever they waited
for. With F as that law, keeping state for T seconds is worth

    U(T) = C F(T) - E[gap; gap <= T] - T (1 - F(T))

where C is what it costs to have the state back: its prefill, 1.85 times, since a hit is
worth more to a session that makes progress (one plus one less their alpha of 0.15). T
is the best of 32 between 0.05 and 32 seconds, evenly spaced in their logarithms, and at
most C. Nothing is pinned where no U is positive, or before 100 gaps were seen. A new
session gets in if it fits beside what runs and what is pinned, with room for growth;
and so does a session that comes back to nothing.

In our terms: C is the measured prefill, or restore with ``:tier``, in place of the
coefficients that they ship. After its time the state is the engine's to evict. A wait
for the user is never pinned, since nothing tells of its beginning. Growth is what the
last turns needed, for one turn each. Left out: their bypass of the gate for a larger
batch, and the switch that turns pinning off where it has gained little.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from ..policy import Retention, View
from ..session import Session
from .pins import Pinning

_SAMPLES = 100
_WORTH = 1.85
_SHORTEST_S, _LONGEST_S, _STEPS = 0.05, 32.0, 32
_NO_TIME_S = 1e-3  # a gap of zero has no logarithm
_NARROWEST = 1e-6  # nor have equal gaps a deviation to divide by


class ProgressTtl(Pinning):
    """Pin by expected utility; let in what fits beside what is pinned."""

    def __init__(self, *, tier: bool = False) -> None:
        super().__init__(tier=tier, gated=True)

    @property
    def name(self) -> str:
        """``progress-ttl``, and ``:tier`` if the engine has one."""
        return "progress-ttl:tier" if self._tier else "progress-ttl"

    def on_wait(self, session: Session, view: View, now_s: float) -> Retention | None:
        """Pin the state for as long as that pays; it leaves only if needed."""
        gaps_s = view.history.gaps_s
        if len(gaps_s) >= _SAMPLES:
            cost_s = _WORTH * self.lost_s(session.held_tokens, view.outlook)
            ttl_s = Lognormal.fit(gaps_s).best_ttl_s(cost_s)
            self._pins.pin(session, ttl_s, now_s=now_s)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """The law of something whose logarithm, in ln seconds, is normal.

    >>> law = Lognormal(mean=0.0, deviation=1.0)
    >>> law.within(1.0)
    0.5
    >>> round(law.mean_within_s(1.0), 4)
    0.2616
    >>> round(law.utility_s(1.0, cost_s=4.0), 4)
    1.2384
    """

    mean: float
    deviation: float

    @classmethod
    def fit(cls, gaps_s: Collection[float]) -> Self:
        """Return the likeliest law of *gaps_s*, of which there must be some."""
        logs = [math.log(max(gap_s, _NO_TIME_S)) for gap_s in gaps_s]
        mean = math.fsum(logs) / len(logs)
        variance = math.fsum((log - mean) ** 2 for log in logs) / len(logs)
        return cls(mean=mean, deviation=max(math.sqrt(variance), _NARROWEST))

    def within(self, ttl_s: float) -> float:
        """Return the chance of a gap of at most *ttl_s*: F(T)."""
        return _normal((math.log(ttl_s) - self.mean) / self.deviation)

    def mean_within_s(self, ttl_s: float) -> float:
        """Return E[gap; gap <= T]: what such gaps add to the mean."""
        variance = self.deviation**2
        share = _normal((math.log(ttl_s) - self.mean - variance) / self.deviation)
        return math.exp(self.mean + variance / 2) * share

    def utility_s(self, ttl_s: float, *, cost_s: float) -> float:
        """Return U(T), for state that takes *cost_s* to have back."""
        within = self.within(ttl_s)
        held_s = self.mean_within_s(ttl_s) + ttl_s * (1 - within)
        return cost_s * within - held_s

    def best_ttl_s(self, cost_s: float) -> float:
        """Return for how long to pin such state; 0 where it does not pay."""
        best_s, best = 0.0, 0.0
        for step in range(_STEPS):
            share = step / (_STEPS - 1)
            ttl_s = _SHORTEST_S * (_LONGEST_S / _SHORTEST_S) ** share
            utility_s = self.utility_s(ttl_s, cost_s=cost_s)
            if utility_s > best:
                best_s, best = ttl_s, utility_s
        return min(best_s, cost_s)


def _normal(score: float) -> float:
    return (1 + math.erf(score / math.sqrt(2))) / 2
