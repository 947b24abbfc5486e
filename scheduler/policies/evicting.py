"""What the rules of other systems have below them: an engine that evicts by itself.

A gate in front of an engine moves no state; what the engine evicts is computed again.
The best case is an engine with a tier of its own (``:tier``): what is evicted has been
copied there as soon as the link had nothing else to do, and comes back when needed.
"""

from ..outlook import Outlook
from ..policy import Traits, View
from ..session import Departure, Residency, Session
from .keep import Keep


class Evicting(Keep):
    """The least recently used is evicted, into nothing or into a tier."""

    def __init__(self, *, tier: bool, reserves_growth: bool = False) -> None:
        self._tier = tier
        self.traits = Traits(
            departure=Departure.PARK if tier else Departure.DROP,
            ripens=True,
            reserves_growth=reserves_growth,
        )

    def copy_behind(self, view: View, now_s: float) -> Session | None:
        """Copy to the tier what would be evicted first."""
        if not self._tier:
            return None
        dirty = [
            session
            for session in view.foremost(1, dirty=True)
            if session.residency is Residency.RESIDENT
        ]
        return min(dirty, key=lambda session: session.waits_since_s, default=None)

    def lost_s(self, tokens: int, outlook: Outlook) -> float:
        """Return the seconds to have *tokens* back after they were evicted."""
        return outlook.restore_s(tokens) if self._tier else outlook.prefill_s(tokens)
