"""``keep``: resident until memory is needed, then the least recently used is dropped.

What an engine does by itself, and so the baseline that everything else has to beat. The
other policies are written as what they do differently.
"""

from collections.abc import Iterator

from ..policy import Retention, Traits, Victim, View
from ..session import Departure, Session


class Keep:
    """Keep everything; drop the least recently used when memory is needed."""

    traits = Traits(departure=Departure.DROP)

    @property
    def name(self) -> str:
        """``keep``."""
        return "keep"

    def on_wait(self, session: Session, view: View, now_s: float) -> Retention | None:
        """Keep the state."""
        return None

    def victims(self, view: View, now_s: float, *, forced: bool) -> Iterator[Victim]:
        """Yield the longest waiting first."""
        for session in view.waiting:
            yield Victim(session, self.traits.departure)

    def admits(
        self, session: Session, lack_tokens: int, view: View, now_s: float
    ) -> bool:
        """Let everybody in for whom room can be made."""
        return True

    def copy_behind(self, view: View, now_s: float) -> Session | None:
        """Copy nothing that does not have to leave."""
        return None
