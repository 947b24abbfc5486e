"""Several stores as one: a fast one takes what is parked, slower ones keep it longer.

Park. The first tier takes the state, and the call returns. The tiers below get it from
a queue each (``write_behind.py``), whole or only the new rows, whatever they lack. With
*through*, the call also waits until it was the state's turn at the last tier; the
receipt names that tier if it has it now. If it does not, that is no error: the state is
kept, and tried again. If the first tier has no room, the next one takes it at once.

Fetch. The fastest tier that has the newest state answers. A corrupt copy falls through
to the next tier. What came from below is parked in the first tier again, afterwards.

Lost. A state that leaves a tier is lost when no other tier has it, nor the queue: only
then the owner is told, once, or if the park that displaced it waits for nothing more,
its key is in ``Receipt.evicted``. A state that the first tier displaced before it was
written below is kept alive by the queue until it is. Of a state that is elsewhere now,
by eviction or promotion, the owner hears that it has moved.

What was begun for a key is finished, even if the caller is cancelled; so everything
here runs in tasks of the store's own, one after another for each key.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

import anyio

from .copies import Copies
from .errands import Errands
from .errors import StateMissing, StateStoreError, StoreUnavailable
from .lookup import Lookup
from .losses import Losses
from .state import KVState, Manifest
from .store import Inventory, Owner, Receipt, StoreStat
from .write_behind import WriteBehind

_QUEUE_BYTES: Final = 1024**3
_FLUSH_S: Final = 5.0


class TieredStore:
    """Implements ``Inventory`` by *tiers*, the fastest first.

    With *write_through* every park waits for the last tier. ``queue_bytes`` bounds what
    each queue keeps alive that no tier holds; what a tier in this process holds too are
    the same bytes. ``flush_s`` bounds how long closing waits for the queues.
    """

    def __init__(
        self,
        tiers: Sequence[Inventory],
        *,
        write_through: bool = False,
        queue_bytes: int = _QUEUE_BYTES,
        flush_s: float = _FLUSH_S,
    ) -> None:
        self._tiers = tuple(tiers)
        self._write_through = write_through
        self._flush_s = flush_s
        self._copies = Copies(len(self._tiers))
        self._losses = Losses(self._copies)
        self._ways = tuple(
            WriteBehind(
                tier,
                number,
                copies=self._copies,
                losses=self._losses,
                load=self._load,
                queue_bytes=queue_bytes,
            )
            for number, tier in enumerate(self._tiers)
        )
        self._lookup = Lookup(
            self._tiers,
            self._ways,
            copies=self._copies,
            settle=self._losses.settle,
            replaced=self._replace,
        )
        self._errands = Errands()
        self._losses.ways = self._ways
        self._losses.listen(self._tiers)

    # ---- park ------------------------------------------------------------------------

    async def park(self, state: KVState, *, through: bool = False) -> Receipt:
        """Keep *state*; raise StoreFull if no tier can ever take it.

        If the first tier fails in another way and no other takes it, its error.
        """
        parking = self._errands.begin(self._park(state, through or self._write_through))
        try:
            await asyncio.wait([parking])
        except asyncio.CancelledError:
            # Nobody reads the receipt, but somebody has to hear of the lost.
            parking.add_done_callback(self._tell_displaced)
            raise
        return parking.result()

    async def _park(self, state: KVState, through: bool) -> Receipt:
        key = state.manifest.key
        async with self._errands.alone(key):
            receipt = await self._place(state)
        receipt = replace(receipt, nbytes=state.manifest.kv_bytes)
        if not through or len(self._ways) == 1:
            return receipt
        if self._losses.owner is not None:  # who should not wait to hear of it
            self._losses.tell(receipt.evicted)
            receipt = replace(receipt, evicted=())
        last = self._ways[-1]
        written = await last.written(key)
        return replace(receipt, tier=last.name) if written else receipt

    async def _place(self, state: KVState) -> Receipt:
        """Park *state* in the fastest tier that takes it, and queue it for the rest."""
        manifest = await self._whole_manifest(state)
        error: StateStoreError | None = None
        try:
            for number, way in enumerate(self._ways):
                try:
                    pieces = await self._pieces(state, number)
                    receipt = await way.write(manifest, pieces, is_newer=True)
                except StateStoreError as failure:
                    # That the beginning is elsewhere says less than that it's full.
                    if error is None or isinstance(error, StateMissing):
                        error = failure
                    continue
                for faster in self._ways[:number]:
                    faster.discard(manifest.key)
                for slower in self._ways[number + 1 :]:
                    slower.push(manifest, pieces)
                return receipt
            raise error or StoreUnavailable("the store has no tiers")
        except Exception:
            # A tier that failed half-way may have let go of what it had of the key.
            self._losses.reconsider(manifest.key)
            raise

    async def _whole_manifest(self, state: KVState) -> Manifest:
        """Return what the key is to hold; raise StateMissing if a beginning lacks."""
        rest = state.manifest
        if not rest.first_token:
            return rest
        base = self._copies.newest(rest.key) or await self.find(rest.key)
        if not rest.continues(base):
            raise _lacks_beginning(rest)
        return rest.behind(base)

    async def _pieces(self, state: KVState, number: int) -> KVState:
        """Return what makes the tier hold the state that *state* ends."""
        rest, way = state.manifest, self._ways[number]
        if rest.first_token and way.covers(rest.key):
            await way.written(rest.key)  # what these rows continue comes first
        if not rest.first_token or self._copies.holds(rest.key, number):
            return state
        for each in self._ways:
            if (queued := each.state(rest.key)) is not None:
                return state.behind(queued)
        # A tier that has no room for the whole may still have its beginning.
        base = self._copies.newest(rest.key)
        beginning = await self._load(base, number) if base else None
        if beginning is not None:
            return state.behind(beginning)
        if self._copies.may_hold(rest.key, number):
            return state  # the tier will say
        raise _lacks_beginning(rest)

    def _tell_displaced(self, parking: asyncio.Task[Receipt]) -> None:
        if not parking.cancelled() and parking.exception() is None:
            self._losses.tell(parking.result().evicted)

    # ---- fetch -----------------------------------------------------------------------

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        """Return the verified state; raise StateMissing or StateCorrupt.

        StoreUnavailable or StateLeased say that a tier may have it, but can't give it.
        """
        state, receipt = await self._lookup.fetch(key)
        if not self._copies.may_hold(key, 0) and not self._errands.closed:
            self._errands.begin(self._promote(state))
        return state, receipt

    async def find(self, key: str) -> Manifest:
        """Return what the key holds; raise StateMissing."""
        return await self._lookup.find(key)

    async def _promote(self, state: KVState) -> None:
        key = state.manifest.key
        async with self._errands.alone(key):
            newest = self._copies.newest(key)
            if newest != state.manifest or self._copies.holds(key, 0):
                return
            with contextlib.suppress(StateStoreError):
                receipt = await self._ways[0].write(
                    state.manifest, state, is_newer=False
                )
                self._losses.tell(receipt.evicted)
                self._losses.reconsider(key)

    # ---- the rest --------------------------------------------------------------------

    async def drop(self, key: str) -> None:
        """Forget the key in every tier; where that fails, as soon as it is back."""
        dropping = self._errands.begin(self._drop(key))
        await asyncio.wait([dropping])
        dropping.result()

    async def _drop(self, key: str) -> None:
        with self._copies.using(key):
            async with self._errands.alone(key):
                self._copies.forget(key)  # before it's gone, so that nobody fetches it
                for way in self._ways:
                    await way.stop(key)
                    way.discard(key)
            await asyncio.gather(*(way.written(key) for way in self._ways))

    async def stat(self) -> StoreStat:
        """Return the sums; a state counts once, in however many tiers it is.

        ``states`` are those that were parked or found through this store,
        ``evictions`` those that are lost.
        """
        tiers = tuple([await tier.stat() for tier in self._tiers])
        budgets = [tier.budget_bytes for tier in tiers if tier.budget_bytes is not None]
        refused = Counter[str]()
        for tier in tiers:
            refused.update(tier.refused)
        for way in self._ways:
            refused.update(way.refused)
        return StoreStat(
            states=self._copies.states,
            stored_bytes=self._copies.stored_bytes,
            budget_bytes=sum(budgets) if len(budgets) == len(tiers) else None,
            evictions=self._losses.count,
            tier="tiered",
            available=any(tier.available for tier in tiers),
            refused=dict(refused),
            tiers=tiers,
        )

    async def keys(self) -> AsyncIterator[str]:
        """Yield the key of every state; those of a tier that is away are left out."""
        seen: set[str] = set()
        for number, tier in enumerate(self._tiers):
            with contextlib.suppress(StateStoreError):
                async for key in tier.keys():
                    if key not in seen and self._copies.may_hold(key, number):
                        seen.add(key)
                        yield key
        for way in self._ways:
            for key in way.waiting():
                if key not in seen and way.covers(key):
                    seen.add(key)
                    yield key

    def serve(self, owner: Owner) -> None:
        """Have *owner* hear what is lost, and say what states are worth."""
        self._losses.owner = owner

    @property
    def queued_bytes(self) -> int:
        """Payload that is yet to be written, in all queues."""
        return sum(way.queued_bytes for way in self._ways)

    @property
    def known_keys(self) -> int:
        """Of how many keys something is in a tier, as far as this store knows."""
        return len(self._copies)

    async def settle(self) -> None:
        """Wait until all tiers have what they should, but for those that are away."""
        await self._errands.wait()
        await asyncio.gather(*(way.settle() for way in self._ways))

    async def aclose(self) -> None:
        """Write what is queued, for at most ``flush_s``, and close the tiers."""
        self._errands.closed = True
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._flush(), self._flush_s)
        finally:
            with anyio.CancelScope(shield=True):
                await self._errands.cancel()
                for way in self._ways:
                    await way.cancel()
                for tier in self._tiers:
                    with contextlib.suppress(StateStoreError):
                        await tier.aclose()

    async def _flush(self) -> None:
        await self._errands.wait()
        await asyncio.gather(*(way.flush() for way in self._ways))

    # ---- inside ----------------------------------------------------------------------

    async def _load(self, manifest: Manifest, below: int) -> KVState | None:
        return await self._lookup.load(manifest, range(below))

    def _replace(self, manifest: Manifest, number: int) -> None:
        """Note that another process has parked this state in a tier."""
        self._copies.replace(manifest.key, manifest, number)
        for other, way in enumerate(self._ways):
            if other != number:
                way.discard(manifest.key)


def _lacks_beginning(rest: Manifest) -> StateMissing:
    return StateMissing(
        f"what comes before token {rest.first_token} of state {rest.key!r} "
        "is not parked here"
    )
