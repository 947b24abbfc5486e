"""``drop``: state goes as soon as a tool starts; every turn is computed anew."""

from ..policy import Retention, View
from ..session import Departure, Session
from .keep import Keep


class Drop(Keep):
    """Drop at every tool call."""

    @property
    def name(self) -> str:
        """``drop``."""
        return "drop"

    def on_wait(self, session: Session, view: View, now_s: float) -> Retention | None:
        """Drop the state now."""
        return Retention(departure=Departure.DROP, at_s=now_s)
