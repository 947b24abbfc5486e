"""Who of several tiers has the newest state of a key: asks them in turn.

First the fastest tier, then the queues, which may hold what that had no room for, then
the tiers below. Each answer, and each lack of one, goes into the books.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import anyio.to_thread

from .copies import Copies
from .errors import StateCorrupt, StateMissing, StateStoreError, StoreUnavailable
from .state import KVState, Manifest
from .store import Receipt
from .write_behind import WriteBehind

Answer = TypeVar("Answer")


class Source(Protocol):
    """What can be asked for a state."""

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        """Return the verified state; raise StateMissing or StateCorrupt."""
        ...

    async def find(self, key: str) -> Manifest:
        """Return what the key holds; raise StateMissing."""
        ...


class Lookup:
    """Asks *tiers*, the fastest first, and their *ways*.

    *settle* is called when nobody gave an answer: the state may be lost. *replaced* is
    called when a tier has another state than the one that was written there.
    """

    def __init__(
        self,
        tiers: Sequence[Source],
        ways: Sequence[WriteBehind],
        *,
        copies: Copies,
        settle: Callable[[str], bool],
        replaced: Callable[[Manifest, int], None],
    ) -> None:
        self._tiers = tiers
        self._copies = copies
        self._settle = settle
        self._replaced = replaced
        self._queues = _Queues(ways, copies)

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        """Return the newest state, verified, and the receipt of who gave it."""

        async def fetch(source: Source) -> tuple[KVState, Receipt]:
            return await source.fetch(key)

        return await self._ask(key, fetch, lambda answer: answer[0].manifest)

    async def find(self, key: str) -> Manifest:
        """Return the manifest of the newest state."""

        async def find(source: Source) -> Manifest:
            return await source.find(key)

        return await self._ask(key, find, lambda manifest: manifest)

    async def load(self, manifest: Manifest, numbers: Sequence[int]) -> KVState | None:
        """Return that very state from one of these tiers, if one holds it."""
        for number in numbers:
            if self._copies.holds(manifest.key, number):
                began = self._copies.begin()
                try:
                    state, _ = await self._tiers[number].fetch(manifest.key)
                except (StateMissing, StateCorrupt):
                    self.missing(manifest.key, number, began)
                except StateStoreError:
                    continue
                else:
                    if state.manifest == manifest:
                        return state
        return None

    def missing(self, key: str, number: int, began: int) -> None:
        """Note that a tier that was asked at *began* holds nothing of the key."""
        if not self._copies.changed(key, number, began):
            self._copies.emptied(key, number)

    async def _ask(
        self,
        key: str,
        call: Callable[[Source], Awaitable[Answer]],
        manifest_of: Callable[[Answer], Manifest],
    ) -> Answer:
        with self._copies.using(key):
            while True:
                try:
                    return await self._ask_in_turn(key, call, manifest_of)
                except StateMissing:
                    # Who asks hears of a loss by the error. If it is none, the state
                    # was on its way from one to the other: there is somebody to ask.
                    if self._settle(key) or self._copies.newest(key) is None:
                        raise
                except StateStoreError:
                    self._settle(key)
                    raise

    async def _ask_in_turn(
        self,
        key: str,
        call: Callable[[Source], Awaitable[Answer]],
        manifest_of: Callable[[Answer], Manifest],
    ) -> Answer:
        trouble: StateStoreError = StateMissing(f"no state is parked under {key!r}")
        for number in range(len(self._tiers)):
            if number == 1:
                try:
                    return await call(self._queues)
                except StateStoreError as error:
                    trouble = _graver(trouble, error)
            if not self._copies.may_hold(key, number):
                continue
            began, expected = self._copies.begin(), self._copies.newest(key)
            try:
                answer = await call(self._tiers[number])
            except StateStoreError as error:
                trouble = _graver(trouble, error)
                if isinstance(error, StateMissing | StateCorrupt):
                    self.missing(key, number, began)
            else:
                manifest = manifest_of(answer)
                if self._copies.changed(key, number, began):
                    newest = manifest in (expected, self._copies.newest(key))
                else:
                    newest = self._is_newest(manifest, number)
                if newest:
                    return answer
        raise trouble

    def _is_newest(self, manifest: Manifest, number: int) -> bool:
        """Note what a tier answered; return whether that's what the key holds."""
        key, copies = manifest.key, self._copies
        newest = copies.newest(key)
        if copies.holds(key, number) and newest != manifest:
            self._replaced(manifest, number)
            return True
        copies.saw(key, number, manifest)
        return newest is None or newest == manifest


class _Queues:
    """Implements ``Source`` by what waits to be written."""

    def __init__(self, ways: Sequence[WriteBehind], copies: Copies) -> None:
        self._ways = ways
        self._copies = copies

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        for way in self._ways:
            if (state := way.state(key)) is not None:
                try:
                    await _verify(state)
                except StateCorrupt:
                    await way.stop(key)
                    raise
                return state, Receipt(tier="host", nbytes=state.manifest.kv_bytes)
        for way in self._ways:
            # Here are only its last rows: with the others they will be in the tier.
            if way.covers(key) and not await way.written(key) and way.covers(key):
                raise StoreUnavailable(f"state {key!r} waits for a tier that is away")
        raise StateMissing(f"no state {key!r} waits to be written")

    async def find(self, key: str) -> Manifest:
        newest = self._copies.newest(key)
        if newest is None or not any(way.covers(key) for way in self._ways):
            raise StateMissing(f"no state {key!r} waits to be written")
        return newest


def _graver(one: StateStoreError, other: StateStoreError) -> StateStoreError:
    """Return the error that says more: a tier that is away may yet have it."""
    order = (StateMissing, StateCorrupt)
    ranks = [
        order.index(type(error)) if type(error) in order else len(order)
        for error in (one, other)
    ]
    return other if ranks[1] > ranks[0] else one


async def _verify(state: KVState) -> None:
    if state.manifest.length_bytes <= 256 * 1024:
        state.verify()
    else:
        await anyio.to_thread.run_sync(state.verify)
