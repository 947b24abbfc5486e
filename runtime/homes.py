"""Where sessions live when a runtime has several accelerators, and when they move.

Each accelerator has a scheduler of its own; all share one store. A session lives on one
of them and moves only between turns, by way of the store: it leaves its state there and
finds it again from its new home. It moves

* if its home is down: to another one, with whatever is in the store;
* if its home is full, another one is not, and its state is not on the accelerator: to
  restore it there costs the same.

Whose state is resident stays. So nobody is moved who would pay for it.
"""

from collections.abc import Sequence

from ..scheduler import SessionId
from ..state_store import Manifest
from .dispatch import Dispatch


class Homes:
    """The accelerators of one runtime. It owns the store in their name (``Owner``)."""

    def __init__(self, all: Sequence[Dispatch]) -> None:
        self.all = tuple(all)

    def choose(self, session: SessionId, parent: SessionId | None) -> Dispatch:
        """Return where a new session is to live: with its parent, else where is room.

        An id that is taken leads to where it is, which refuses it.
        """
        for home in self.all:
            if home.knows(session) or (parent is not None and home.knows(parent)):
                return home
        return min(self.all, key=_load)

    def better(
        self, home: Dispatch, session: SessionId, turn_tokens: int
    ) -> Dispatch | None:
        """Return where a turn of so many tokens should rather run than at *home*."""
        if len(self.all) == 1:
            return None
        if home.down:
            return self.refuge(home)
        stays = home.scheduler.session(session).slot is not None
        if stays or home.scheduler.has_room(turn_tokens):
            return None
        for other in sorted(self.all, key=_load):
            if not other.down and other.scheduler.has_room(turn_tokens):
                return other
        return None

    def refuge(self, home: Dispatch) -> Dispatch | None:
        """Return where to go from a *home* that is down, if anywhere."""
        others = [other for other in self.all if other is not home and not other.down]
        return min(others, key=_load, default=None)

    def lost(self, key: str) -> None:
        """Tell whose state it was that the store has lost it."""
        for home in self.all:
            home.lost(key)

    def moved(self, key: str, tier: str) -> None:
        """Tell whose state it is where that is now."""
        for home in self.all:
            home.moved(key, tier)

    def worth_s(self, manifest: Manifest) -> float:
        """Return what a parked state is worth to whoever has its session."""
        return max(home.worth_s(manifest) for home in self.all)


def _load(home: Dispatch) -> tuple[bool, int, float]:
    capacity = home.backend.capabilities
    scheduler = home.scheduler
    return (
        home.down,
        scheduler.queued_turns,
        scheduler.reserved_tokens / capacity.kv_tokens,
    )
