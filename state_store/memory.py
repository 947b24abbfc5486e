"""Parked state in host memory, up to a budget.

When a state does not fit, others leave: the least recently used first. The order is
the dictionary's own, oldest at the front. Bytes are counted as the manifest counts
them, so that a simulated state, which carries no payload, takes its place as well.
"""

from collections.abc import AsyncIterator
from typing import Final

import anyio.to_thread

from .errors import StateCorrupt, StateMissing, StoreFull
from .state import KVState, Manifest
from .store import Owner, Receipt, StoreStat

_TIER: Final = "host"
# Below this, verifying takes less time than handing it to a thread.
_VERIFIED_IN_PLACE_BYTES: Final = 256 * 1024


class MemoryStore:
    """Implements ``StateStore``; ``budget_bytes`` None means no limit.

    No call waits between looking and changing, so a cancelled one has done either all
    of its work or nothing.
    """

    def __init__(self, budget_bytes: int | None) -> None:
        self._budget_bytes = budget_bytes
        self._states: dict[str, KVState] = {}
        self._stored_bytes = 0
        self._evictions = 0
        self._owner: Owner | None = None

    async def park(self, state: KVState, *, through: bool = False) -> Receipt:
        """Keep *state* under its key; raise StoreFull when it can't ever fit."""
        key, moved_bytes = state.manifest.key, state.manifest.kv_bytes
        if state.manifest.first_token:
            state = self._whole(state)
        nbytes = state.manifest.kv_bytes
        if self._budget_bytes is not None and nbytes > self._budget_bytes:
            raise StoreFull(
                f"state {key!r} has {nbytes:,} bytes, "
                f"the store takes {self._budget_bytes:,}"
            )
        self._remove(key)
        evicted = self._make_room(nbytes)
        self._states[key] = state
        self._stored_bytes += nbytes
        return Receipt(tier=_TIER, nbytes=moved_bytes, evicted=evicted)

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        """Return the verified state; raise StateMissing or StateCorrupt."""
        state = self._states.get(key)
        if state is None:
            raise StateMissing(f"no state is parked under {key!r}")
        try:
            await _verify(state)
        except StateCorrupt:
            self._remove_this(state)
            raise
        if self._states.get(key) is state:
            self._states[key] = self._states.pop(key)
        return state, Receipt(tier=_TIER, nbytes=state.manifest.kv_bytes)

    async def find(self, key: str) -> Manifest:
        """Return what the key holds; raise StateMissing."""
        state = self._states.get(key)
        if state is None:
            raise StateMissing(f"no state is parked under {key!r}")
        return state.manifest

    async def drop(self, key: str) -> None:
        """Forget the key; dropping what isn't there is no error."""
        self._remove(key)

    async def stat(self) -> StoreStat:
        """Return how full the store is."""
        return StoreStat(
            states=len(self._states),
            stored_bytes=self._stored_bytes,
            budget_bytes=self._budget_bytes,
            evictions=self._evictions,
        )

    async def keys(self) -> AsyncIterator[str]:
        """Yield the key of every state."""
        for key in list(self._states):
            yield key

    def serve(self, owner: Owner) -> None:
        """Have *owner* say what states are worth."""
        self._owner = owner

    async def aclose(self) -> None:
        """Let go of every state."""
        self._states.clear()
        self._stored_bytes = 0

    def _whole(self, rest: KVState) -> KVState:
        base = self._states.get(rest.manifest.key)
        if base is None or not rest.manifest.continues(base.manifest):
            raise StateMissing(
                f"what comes before token {rest.manifest.first_token} of state "
                f"{rest.manifest.key!r} is not parked here"
            )
        return rest.behind(base)

    def _make_room(self, nbytes: int) -> tuple[str, ...]:
        evicted: list[str] = []
        while (
            self._budget_bytes is not None
            and self._stored_bytes + nbytes > self._budget_bytes
        ):
            victim = next(iter(self._states))
            self._remove(victim)
            self._evictions += 1
            evicted.append(victim)
        return tuple(evicted)

    def _remove_this(self, state: KVState) -> None:
        # While it was verified, another may have been parked under the same key.
        if self._states.get(state.manifest.key) is state:
            self._remove(state.manifest.key)

    def _remove(self, key: str) -> None:
        state = self._states.pop(key, None)
        if state is not None:
            self._stored_bytes -= state.manifest.kv_bytes


async def _verify(state: KVState) -> None:
    if sum(map(len, state.payloads)) <= _VERIFIED_IN_PLACE_BYTES:
        state.verify()
    else:
        await anyio.to_thread.run_sync(state.verify)
