"""``oracle``: memory is made by whoever will not need its own for longest, in truth.

For replays only, which know from the trace how long a tool is going to take. Who leaves
is Belady's choice, and the link copies ahead of need in the same order. State is always
parked: choosing for each between that and dropping, by what was measured, was slower in
the study sessions, since computing again keeps the accelerator from everybody else. It
is no bound: it never asks whether a move pays.
"""

from collections.abc import Iterable, Iterator

from ..policy import Traits, Victim, View
from ..session import Departure, Residency, Session
from .keep import Keep


class Oracle(Keep):
    """Let those go first who are going to wait for longest."""

    traits = Traits(departure=Departure.PARK, clairvoyant=True)

    @property
    def name(self) -> str:
        """``oracle``."""
        return "oracle"

    def victims(self, view: View, now_s: float, *, forced: bool) -> Iterator[Victim]:
        """Yield those who wait, the longest remaining wait first."""
        for session in _furthest_first(view.waiting, view, now_s):
            yield Victim(session, self.traits.departure)

    def copy_behind(self, view: View, now_s: float) -> Session | None:
        """Copy who would leave first, if anybody's state is not copied."""
        dirty = [
            session
            for session in view.waiting
            if session.residency is Residency.RESIDENT and not session.clean
        ]
        return next(iter(_furthest_first(dirty, view, now_s)), None)


def _furthest_first(
    sessions: Iterable[Session], view: View, now_s: float
) -> list[Session]:
    outlook = view.outlook
    return sorted(sessions, key=lambda session: -outlook.remaining_s(session, now_s))
