"""``keep``: resident until memory is needed, then the least recently used is dropped.

What an engine does by itself, and so the baseline that everything else has to beat.
"""

from collections.abc import Iterator

from ..policy import Retention, View
from ..session import Departure, Session


class Keep:
    """Keep everything; drop the least recently used when memory is needed."""

    name = "keep"
    departure = Departure.DROP

    def on_wait(self, session: Session, now_s: float) -> Retention | None:
        """Keep the state."""
        return None

    def victims(self, view: View, now_s: float) -> Iterator[Session]:
        """Yield the longest waiting first."""
        return iter(view.waiting)
