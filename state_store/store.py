"""The seams between the runtime and wherever parked KV state lives."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from .state import KVState, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a park or a fetch did: the tier, the bytes moved, and whom it displaced."""

    tier: str
    nbytes: int
    evicted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStat:
    """How full a store is; ``budget_bytes`` is None where there is no limit.

    ``refused`` counts, by reason, states that were there and not given out, or could
    not be taken. ``available`` is False while the store is given up for a time.
    ``tiers`` are those of a store that consists of several, the fastest first.
    """

    states: int
    stored_bytes: int
    budget_bytes: int | None
    evictions: int
    tier: str = ""
    available: bool = True
    refused: Mapping[str, int] = field(default_factory=dict[str, int])
    tiers: tuple["StoreStat", ...] = ()


class StateStore(Protocol):
    """Keeps parked KV states by key; one state per key, the last one parked.

    A store verifies what it returns: ``fetch`` never yields a state that differs from
    what was parked. Cancelling a call leaves the key either as it was or as it was to
    become, never in between.
    """

    async def park(self, state: KVState, *, through: bool = False) -> Receipt:
        """Keep *state* under its key; raise StoreFull when it can't ever fit.

        A state that does not begin at token 0 is added to what the key holds; raises
        StateMissing where that does not end right before it. With *through* it is in
        the tier that survives longest when this returns, else at the latest soon.
        """
        ...

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        """Return the verified state; raise StateMissing or StateCorrupt."""
        ...

    async def find(self, key: str) -> Manifest:
        """Return what the key holds, without moving it; raise StateMissing."""
        ...

    async def drop(self, key: str) -> None:
        """Forget the key; dropping what isn't there is no error."""
        ...

    async def aclose(self) -> None:
        """Let go of the store, which must not be used afterwards.

        What it holds in this process is gone; what it holds elsewhere stays.
        """
        ...


class Owner(Protocol):
    """Whom a store serves: it knows what a state is worth, and wants to hear of it."""

    def lost(self, key: str) -> None:
        """Take note that the state is in the store no more, by no call of the owner."""
        ...

    def moved(self, key: str, tier: str) -> None:
        """Take note that the state is in *tier* now: evicted there, or promoted."""
        ...

    def worth_s(self, manifest: Manifest) -> float:
        """Return the seconds that keeping the state is expected to save, per second.

        That is what its restore saves, times how soon it is expected. 0 if nobody is
        known to need it. Who is worth least per byte is evicted first.
        """
        ...


@runtime_checkable
class Inventory(StateStore, Protocol):
    """A store that can be looked at and talks to its owner; all of ours are."""

    async def stat(self) -> StoreStat:
        """Return how full the store is."""
        ...

    def keys(self) -> AsyncIterator[str]:
        """Yield the key of every state that is parked, in no order."""
        ...

    def serve(self, owner: Owner) -> None:
        """Have *owner* hear what is lost from now on, and say what states are worth."""
        ...
