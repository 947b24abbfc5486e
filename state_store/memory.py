"""Parked state in host memory, up to a budget, overall and per tenant.

The store holds the payloads that it is given, it copies nothing: parking and fetching
cost what verifying does. So each payload has to be a buffer of its own, which nobody
writes to; where an equal segment is kept already, the new one's buffer is let go.
Bytes are counted as ``shelf`` does, and who has to leave is decided there.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeVar

import anyio.to_thread

from .errors import StateCorrupt, StoreFull
from .shelf import Change, Place, Shelf, TenantBudget, places_of, wrong_places
from .state import KVState, Manifest, Payload
from .store import Owner, Receipt, StoreStat

_TIER: Final = "host"
# Below this, verifying takes less time than handing it to a thread.
_READ_IN_PLACE_BYTES: Final = 256 * 1024

Result = TypeVar("Result")


class MemoryStore:
    """Implements ``Inventory``; a budget of None means no limit.

    No call waits between looking and changing, so a cancelled one has done either all
    of its work or nothing. What is parked is verified when it is fetched, not before.
    """

    def __init__(
        self, budget_bytes: int | None, tenant_budget_bytes: TenantBudget = None
    ) -> None:
        self._shelf = Shelf(budget_bytes, tenant_budget_bytes)
        self._payloads: dict[Place, Payload] = {}
        self._refused: Counter[str] = Counter()

    async def park(self, state: KVState, *, through: bool = False) -> Receipt:
        """Keep *state* under its key; raise StoreFull when it can't ever fit."""
        manifest = state.manifest
        try:
            change = self._shelf.add(self._shelf.whole(manifest))
        except StoreFull:
            self._refused["full"] += 1
            raise
        # A continuation brings the payloads of all new places: others were here before.
        brought = dict(zip(places_of(manifest), state.payloads, strict=True))
        self._payloads.update((place, brought[place]) for place in change.new)
        self._let_go(change)
        return Receipt(tier=_TIER, nbytes=manifest.kv_bytes, evicted=change.evicted)

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        """Return the verified state; raise StateMissing or StateCorrupt.

        States that share the wrong bytes of a corrupt one are lost with it.
        """
        manifest = self._shelf.get(key)
        places = places_of(manifest)
        payloads = tuple(self._payloads[place] for place in places)
        state = KVState(manifest=manifest, payloads=payloads)
        try:
            await _read_through(state, KVState.verify)
        except StateCorrupt:
            self._condemn(state, await _read_through(state, wrong_places))
            raise
        if self._shelf.holds(manifest):
            self._shelf.use(key)
        return state, Receipt(tier=_TIER, nbytes=manifest.kv_bytes)

    async def find(self, key: str) -> Manifest:
        """Return what the key holds; raise StateMissing."""
        return self._shelf.get(key)

    async def drop(self, key: str) -> None:
        """Forget the key; dropping what isn't there is no error."""
        self._let_go(self._shelf.remove(key))

    async def stat(self) -> StoreStat:
        """Return how full the store is."""
        return self._shelf.stat(_TIER, self._refused)

    async def keys(self) -> AsyncIterator[str]:
        """Yield the key of every state."""
        for key in list(self._shelf):
            yield key

    def serve(self, owner: Owner) -> None:
        """Have *owner* say what states are worth."""
        self._shelf.owner = owner

    async def aclose(self) -> None:
        """Let go of every state."""
        self._shelf.clear()
        self._payloads.clear()

    def _let_go(self, change: Change) -> None:
        for place in change.freed:
            del self._payloads[place]

    def _condemn(self, state: KVState, wrong: tuple[Place, ...]) -> None:
        """Take out the corrupt *state*, and those that share its ``wrong`` payloads.

        While it was verified, others may have come in its place or its payloads'.
        """
        self._refused["corrupt"] += 1
        key = state.manifest.key
        payloads = dict(zip(places_of(state.manifest), state.payloads, strict=True))
        change = self._shelf.condemn(
            place for place in wrong if self._payloads.get(place) is payloads[place]
        )
        self._let_go(change)
        if self._shelf.holds(state.manifest):
            self._let_go(self._shelf.remove(key))
        if self._shelf.owner is not None:
            for other in change.evicted:
                if other != key:
                    self._shelf.owner.lost(other)


async def _read_through(state: KVState, read: Callable[[KVState], Result]) -> Result:
    if sum(map(len, state.payloads)) <= _READ_IN_PLACE_BYTES:
        return read(state)
    return await anyio.to_thread.run_sync(read, state)
