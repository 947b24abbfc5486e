"""``drop``: state goes as soon as a tool starts; every turn is computed anew."""

from collections.abc import Iterator

from ..policy import Retention, View
from ..session import Departure, Session


class Drop:
    """Drop at every tool call."""

    name = "drop"
    departure = Departure.DROP

    def on_wait(self, session: Session, now_s: float) -> Retention | None:
        """Drop the state now."""
        return Retention(departure=Departure.DROP, at_s=now_s)

    def victims(self, view: View, now_s: float) -> Iterator[Session]:
        """Yield the longest waiting first."""
        return iter(view.waiting)
