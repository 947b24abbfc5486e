"""When a state is lost, and when it has only moved; who has to hear of it.

A state is lost when no tier has it, nor any queue on the way to one. Where nobody knows
what a tier has, somebody has to look before that can be said.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from .copies import Copies
from .state import Manifest
from .store import Inventory, Owner


class Way(Protocol):
    """What has to be known of the way to a tier."""

    @property
    def name(self) -> str:
        """The tier's name; empty if nobody knows."""
        ...

    def covers(self, key: str) -> bool:
        """Return whether the newest state is on its way."""
        ...

    def look(self, key: str) -> None:
        """Have somebody look at what the tier has."""
        ...

    def discard(self, key: str) -> None:
        """Have the tier drop the key."""
        ...


class Losses:
    """Tells the ``owner`` of a store of several tiers; ``count`` is of all losses.

    ``ways`` are those to the tiers, to be set once there are any.
    """

    def __init__(self, copies: Copies) -> None:
        self.owner: Owner | None = None
        self.count = 0
        self.ways: Sequence[Way] = ()
        self._copies = copies

    def listen(self, tiers: Sequence[Inventory]) -> None:
        """Hear what the tiers lose by themselves, and say what states are worth."""
        for number, tier in enumerate(tiers):
            tier.serve(_Ear(self, number))

    def displaced(self, keys: Iterable[str], tier: int, since: int) -> tuple[str, ...]:
        """Note whom *tier* displaced in what began at *since*; return who is lost."""
        lost: list[str] = []
        for key in keys:
            if self._copies.changed(key, tier, since):
                self._copies.doubt(key, tier)
            else:
                self._copies.emptied(key, tier)
            if self.settle(key):
                lost.append(key)
        return tuple(lost)

    def left(self, key: str, tier: int) -> None:
        """Note that *tier* has lost the key's state by itself."""
        self._copies.emptied(key, tier)
        self.reconsider(key)

    def reconsider(self, key: str) -> None:
        """Tell the owner if the key's newest state is nowhere, or elsewhere."""
        if self.settle(key):
            self.tell([key])

    def settle(self, key: str) -> bool:
        """Return whether the key's newest state has just turned out to be lost."""
        copies = self._copies
        if copies.newest(key) is None:
            return False
        if copies.holders(key) or any(way.covers(key) for way in self.ways):
            self._locate(key)
            return False
        if unseen := copies.unseen(key):
            for number in unseen:
                self.ways[number].look(key)
            return False
        self.count += 1
        copies.forget(key)
        for way in self.ways:
            way.discard(key)
        return True

    def is_lost(self, key: str) -> bool:
        """Return whether the key has no newest state."""
        return self._copies.newest(key) is None

    def tell(self, lost: Iterable[str]) -> None:
        """Tell the owner who is lost, unless it was parked again meanwhile."""
        for key in lost:
            if self.owner is not None and self.is_lost(key):
                self.owner.lost(key)

    def worth_s(self, manifest: Manifest) -> float:
        """Return what the owner says; all are alike if there is none."""
        return 0.0 if self.owner is None else self.owner.worth_s(manifest)

    def _locate(self, key: str) -> None:
        number = self._copies.moved(key)
        if number is not None and self.owner is not None and self.ways[number].name:
            self.owner.moved(key, self.ways[number].name)


class _Ear:
    """Implements ``Owner`` for one tier."""

    def __init__(self, losses: Losses, number: int) -> None:
        self._losses = losses
        self._number = number

    def lost(self, key: str) -> None:
        self._losses.left(key, self._number)

    def moved(self, key: str, tier: str) -> None:
        pass  # within the tier

    def worth_s(self, manifest: Manifest) -> float:
        return self._losses.worth_s(manifest)
