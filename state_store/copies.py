"""Which tier holds the newest state of which key: bookkeeping, no I/O.

Of each key there is a newest state, the one that was parked last. Only tiers that hold
exactly that, or of whom nobody knows what they hold, are asked for it. An older one in
a tier is good for one thing: the newest's new rows may be appended to it.

Reports come late: a tier says whom it displaced when its park returns, and by then the
key may be in it again. So every operation on a tier draws a number before it starts,
and a report about what changed since that number is not believed, but looked into.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, unique

from .shelf import Shelf
from .state import Manifest


@unique
class Content(Enum):
    """What a tier holds of a key, where it is no known state."""

    NOTHING = "nothing"
    OTHER = "other"  # not the newest
    UNSEEN = "unseen"  # anything: nobody has looked, or a write there ended in doubt


Held = Manifest | Content


@dataclass(slots=True, eq=False)
class _Entry:
    """Invariant: of a key that is gone, nothing is newest and no tier is unseen."""

    held: list[Held]
    since: list[int]  # number of the latest change, per tier
    newest: Manifest | None = None
    place: int | None = None  # the fastest tier that has it, as was last told
    gone: bool = False  # dropped or lost, though a tier may still hold something
    users: int = 0


class Copies:
    """The books of a store of several tiers, which are known by number, 0 the fastest.

    ``states`` and ``stored_bytes`` count each newest state once, and equal segments of
    one tenant once, wherever and in how many tiers they are.
    """

    def __init__(self, tiers: int) -> None:
        self._tiers = tiers
        self._entries: dict[str, _Entry] = {}
        self._number = 0
        self._newest = Shelf()

    def __len__(self) -> int:
        """Return of how many keys something is known."""
        return len(self._entries)

    def begin(self) -> int:
        """Return the number of an operation that starts now."""
        self._number += 1
        return self._number

    @property
    def states(self) -> int:
        """How many keys have a newest state."""
        return self._newest.states

    @property
    def stored_bytes(self) -> int:
        """What the newest states take."""
        return self._newest.stored_bytes

    # ---- what is known ---------------------------------------------------------------

    def newest(self, key: str) -> Manifest | None:
        """Return the newest state; None if there is none, or nobody has looked."""
        entry = self._entries.get(key)
        return entry.newest if entry else None

    def held(self, key: str, tier: int) -> Held:
        """Return what *tier* holds of the key."""
        entry = self._entries.get(key)
        return entry.held[tier] if entry else Content.UNSEEN

    def holds(self, key: str, tier: int) -> bool:
        """Return whether *tier* holds the newest."""
        entry = self._entries.get(key)
        return bool(entry and entry.newest and entry.held[tier] is entry.newest)

    def may_hold(self, key: str, tier: int) -> bool:
        """Return whether it is worth asking *tier*."""
        return self.holds(key, tier) or self.held(key, tier) is Content.UNSEEN

    def holders(self, key: str) -> list[int]:
        """Return the tiers that hold the newest."""
        return [tier for tier in range(self._tiers) if self.holds(key, tier)]

    def unseen(self, key: str) -> list[int]:
        """Return the tiers of which nobody knows what they hold."""
        return [
            tier
            for tier in range(self._tiers)
            if self.held(key, tier) is Content.UNSEEN
        ]

    def changed(self, key: str, tier: int, since: int) -> bool:
        """Return whether what *tier* holds has changed since the number *since*."""
        entry = self._entries.get(key)
        return entry is not None and entry.since[tier] > since

    @contextmanager
    def using(self, key: str) -> Generator[None]:
        """Remember the key meanwhile, so that a drop in between is noticed."""
        entry = self._open(key)
        entry.users += 1
        try:
            yield
        finally:
            entry.users -= 1
            self._prune(key, entry)

    # ---- what happens ----------------------------------------------------------------

    def replace(self, key: str, manifest: Manifest, tier: int) -> None:
        """Note that *manifest* is the newest now: in *tier*, and who has it already."""
        entry = self._open(key)
        same = entry.newest == manifest
        self._make_newest(entry, manifest)
        entry.gone, entry.place = False, tier
        for other, held in enumerate(entry.held):
            if other == tier or held == manifest:
                self._set(entry, other, manifest)
            elif held is Content.UNSEEN and not same:
                self._set(entry, other, Content.OTHER)

    def saw(self, key: str, tier: int, manifest: Manifest) -> None:
        """Note that *tier* holds *manifest*, which may be the newest or not."""
        entry = self._open(key)
        if entry.newest is None and not entry.gone:
            self._make_newest(entry, manifest)
        same = entry.newest is not None and entry.newest == manifest
        self._set(entry, tier, entry.newest if same and entry.newest else manifest)

    def moved(self, key: str) -> int | None:
        """Return the fastest tier that has the newest, if it wasn't that before."""
        entry, holders = self._entries.get(key), self.holders(key)
        if entry is None or not holders or entry.place == holders[0]:
            return None
        entry.place = holders[0]
        return entry.place

    def emptied(self, key: str, tier: int) -> None:
        """Note that *tier* holds nothing of the key."""
        entry = self._entries.get(key)
        if entry is not None:
            self._set(entry, tier, Content.NOTHING)
            self._prune(key, entry)

    def doubt(self, key: str, tier: int) -> None:
        """Note that *tier* may hold anything."""
        entry = self._entries.get(key)
        if entry is not None:
            self._set(entry, tier, Content.OTHER if entry.gone else Content.UNSEEN)

    def forget(self, key: str) -> list[int]:
        """Note that the key is gone; return the tiers that hold something of it."""
        entry = self._open(key)
        self._make_newest(entry, None)
        entry.gone = True
        for tier in self.unseen(key):
            self._set(entry, tier, Content.OTHER)
        self._prune(key, entry)
        return [
            tier for tier, held in enumerate(entry.held) if held is not Content.NOTHING
        ]

    # ---- inside ----------------------------------------------------------------------

    def _open(self, key: str) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = _Entry(held=[Content.UNSEEN] * self._tiers, since=[0] * self._tiers)
            self._entries[key] = entry
        return entry

    def _set(self, entry: _Entry, tier: int, held: Held) -> None:
        entry.held[tier] = held
        entry.since[tier] = self.begin()

    def _prune(self, key: str, entry: _Entry) -> None:
        nothing = all(held is Content.NOTHING for held in entry.held)
        if entry.newest is None and not entry.users:
            blank = not entry.gone and all(
                held is Content.UNSEEN for held in entry.held
            )
            if (nothing or blank) and self._entries.get(key) is entry:
                del self._entries[key]

    def _make_newest(self, entry: _Entry, manifest: Manifest | None) -> None:
        if entry.newest is not None:
            self._newest.remove(entry.newest.key)
        entry.newest = manifest
        if manifest is not None:
            self._newest.add(manifest)
