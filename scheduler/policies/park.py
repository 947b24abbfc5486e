"""``park`` and ``hold:τ``: state goes to the store when a tool starts, or τ later.

Holding pays because tool waits have a decreasing hazard: most end within a second, and
the longer one has lasted, the longer it will last. τ seconds spare the short ones the
two transfers.
"""

from ..policy import Retention, Traits, View
from ..session import Departure, Session
from .keep import Keep


class Park(Keep):
    """Park every session whose tool has run for ``hold_s`` (0: at once)."""

    traits = Traits(departure=Departure.PARK)

    def __init__(self, *, hold_s: float = 0.0) -> None:
        self._hold_s = hold_s

    @property
    def name(self) -> str:
        """``park``, or ``hold:`` and the seconds."""
        return f"hold:{self._hold_s:g}" if self._hold_s else "park"

    def on_wait(self, session: Session, view: View, now_s: float) -> Retention | None:
        """Park the state after the hold time."""
        return Retention(departure=Departure.PARK, at_s=now_s + self._hold_s)
