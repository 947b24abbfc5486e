"""A store in trouble on command: what tests and rehearsals put in place of a far tier.

Every call that may wait (park, fetch, find, drop) first waits ``delay_s``, then as long
as the store hangs, then fails if it was told to; else the store inside does the work.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Final

from .state import KVState, Manifest
from .store import Inventory, Owner, Receipt, StoreStat

_CALLS: Final = ("park", "fetch", "find", "drop", "keys")


class FlakyStore:
    """Implements ``Inventory`` by another store, with faults.

    Set ``delay_s`` to make it slow. Time is the running loop's, so virtual in a test.
    ``calls`` are those that came in, ``parked_bytes`` what they brought.
    """

    def __init__(self, inner: Inventory, *, tier: str = "far") -> None:
        self.delay_s = 0.0
        self.calls: list[tuple[str, str]] = []
        self.parked_bytes = 0
        self._inner = inner
        self._tier = tier
        self._error: Exception | None = None
        self._failing: Collection[str] = ()
        self._times: int | None = None
        self._acts_first = False
        self._running = asyncio.Event()
        self._running.set()

    @property
    def is_well(self) -> bool:
        """Whether it neither hangs nor is about to fail."""
        return self._error is None and self._running.is_set()

    def break_down(
        self,
        error: Exception,
        *,
        calls: Collection[str] = _CALLS,
        times: int | None = None,
        acts_first: bool = False,
    ) -> None:
        """Fail these *calls*, or the next *times* of them, with *error*.

        With *acts_first* the work is done before: nobody can tell from the error. While
        it fails without end, the store is not available.
        """
        self._error, self._failing, self._times = error, calls, times
        self._acts_first = acts_first

    def hang(self) -> None:
        """Let no call through until ``heal``."""
        self._running.clear()

    def heal(self) -> None:
        """Work again; calls that hang go on."""
        self._error = None
        self.delay_s = 0.0
        self._running.set()

    async def park(self, state: KVState, *, through: bool = False) -> Receipt:
        """Keep *state*, if it may."""
        self.parked_bytes += state.manifest.kv_bytes
        await self._suffer("park", state.manifest.key)
        if self._acts_first:
            receipt = await self._inner.park(state, through=through)
            self._fail("park")
        else:
            self._fail("park")
            receipt = await self._inner.park(state, through=through)
        return replace(receipt, tier=self._tier)

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        """Return the state, if it may."""
        await self._suffer("fetch", key)
        self._fail("fetch")
        state, receipt = await self._inner.fetch(key)
        return state, replace(receipt, tier=self._tier)

    async def find(self, key: str) -> Manifest:
        """Return what the key holds, if it may."""
        await self._suffer("find", key)
        self._fail("find")
        return await self._inner.find(key)

    async def drop(self, key: str) -> None:
        """Forget the key, if it may."""
        await self._suffer("drop", key)
        if self._acts_first:
            await self._inner.drop(key)
            self._fail("drop")
        else:
            self._fail("drop")
            await self._inner.drop(key)

    async def stat(self) -> StoreStat:
        """Return how full the store inside is, and whether this one fails."""
        stat = await self._inner.stat()
        return replace(
            stat,
            tier=self._tier,
            available=stat.available and (self._error is None or bool(self._times)),
        )

    async def keys(self) -> AsyncIterator[str]:
        """Yield the key of every state."""
        self._fail("keys")
        async for key in self._inner.keys():
            yield key

    def serve(self, owner: Owner) -> None:
        """Have the store inside serve *owner*."""
        self._inner.serve(owner)

    async def aclose(self) -> None:
        """Close the store inside, in trouble or not."""
        await self._inner.aclose()

    async def _suffer(self, call: str, key: str) -> None:
        self.calls.append((call, key))
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._running.wait()

    def _fail(self, call: str) -> None:
        if self._error is None or call not in self._failing:
            return
        error = self._error
        if self._times is not None:
            self._times -= 1
            if self._times <= 0:
                self._error = None
        raise error
