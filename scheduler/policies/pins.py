"""State that is not to be evicted for a while, as two of the baselines have it.

They differ in how they find the time. What is pinned counts as used, so that a session
gets in if it fits beside it; everything else is the engine's to evict. Where a turn has
waited too long or nothing goes on any more, pins give way too.
"""

from collections.abc import Iterator

from ..events import SessionId
from ..policy import Victim, View
from ..session import Session
from .evicting import Evicting

_SWEEP_AT = 256


class Pins:
    """Waits whose state is pinned, each until a time of its own.

    >>> pins, session = Pins(), Session(id=SessionId("a"))
    >>> pins.pin(session, 2.0, now_s=10.0)
    >>> pins.holds(session, 11.9), pins.holds(session, 12.0)
    (True, False)
    """

    def __init__(self) -> None:
        self._pinned: dict[SessionId, tuple[float, float]] = {}  # wait, until
        self._sweep_at = _SWEEP_AT

    def pin(self, session: Session, seconds: float, *, now_s: float) -> None:
        """Pin the state of *session* for *seconds* of the wait that has begun."""
        self._pinned[session.id] = (session.waits_since_s, now_s + seconds)
        if len(self._pinned) >= self._sweep_at:
            self._sweep(now_s)

    def holds(self, session: Session, now_s: float) -> bool:
        """Return whether *session* is pinned, in the wait that it is in."""
        since_s, until_s = self._pinned.get(session.id, (0.0, now_s))
        return now_s < until_s and since_s == session.waits_since_s

    def _sweep(self, now_s: float) -> None:
        """Forget what has run out; often enough that nothing piles up."""
        self._pinned = {
            session: pin for session, pin in self._pinned.items() if now_s < pin[1]
        }
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._pinned))


class Pinning(Evicting):
    """Evict what is not pinned, the least recently used first."""

    def __init__(self, *, tier: bool, gated: bool = False) -> None:
        super().__init__(tier=tier, reserves_growth=gated)
        self._pins = Pins()
        self._gated = gated

    def victims(self, view: View, now_s: float, *, forced: bool) -> Iterator[Victim]:
        """Yield what is not pinned; where it is forced, then the pinned ones.

        Behind a gate whoever is evicted has to come in by it again.
        """
        pinned: list[Session] = []
        for session in view.waiting:
            if self._pins.holds(session, now_s):
                pinned.append(session)
            else:
                yield Victim(session, self.traits.departure, demoted=self._gated)
        if forced:
            for session in self._unpinned(pinned, view):
                yield Victim(session, self.traits.departure, demoted=self._gated)

    def admits(
        self, session: Session, lack_tokens: int, view: View, now_s: float
    ) -> bool:
        """Let it in if it fits beside what runs and what is pinned."""
        for victim in self.victims(view, now_s, forced=False):
            if lack_tokens <= 0:
                break
            lack_tokens -= victim.session.held_tokens
        return lack_tokens <= 0

    def _unpinned(self, pinned: list[Session], view: View) -> list[Session]:
        """Return the *pinned*, longest wait first, in the order of giving way."""
        return pinned
