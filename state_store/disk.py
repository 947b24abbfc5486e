"""Parked state in files of a folder, which survive the process.

A state's manifest is written after its segments, and each under its final name only
once it is complete, so whenever the process is killed, the state is as it was or as it
was to become. Nothing is flushed to the device: after a power cut files may be short or
empty, but what is fetched is verified first, and what fails is removed.

The books (``shelf``) are kept by the event loop, files are touched by threads. While a
call needs segments that others may free, it holds them; they are removed when the last
holder lets go. A state that is being written is in the folder beyond the budget, until
it is in the books and others have left for it.
"""

import asyncio
import errno
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from threading import Event
from typing import Final, Self
from weakref import WeakValueDictionary

import anyio.to_thread

from .errors import (
    StateMissing,
    StateStoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnusable,
)
from .finish import to_its_end
from .sealing import PlainSealer, Sealer
from .shelf import Change, Place, Shelf, TenantBudget, places_of
from .state import KVState, Manifest
from .state_files import FileName, Found, StateFiles, Written
from .store import Owner, Receipt, StoreStat

MINIMUM_BUDGET_BYTES: Final = 1024 * 1024

_TIER: Final = "disk"
# A quota, and a limit on a file's size, end in the same as a full disk.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskStore:
    """Implements ``Inventory``; made by ``open``.

    Calls for one key wait for each other, calls for different keys run side by side.
    """

    def __init__(self, files: StateFiles, shelf: Shelf) -> None:
        self._disk = files
        self._shelf = shelf
        self._manifests: dict[str, FileName] = {}
        self._rows: dict[Place, FileName] = {}
        # Places that calls in progress need, whether or not a state has them.
        self._held: Counter[Place] = Counter()
        self._refused: Counter[str] = Counter()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    async def open(
        cls,
        folder: str | Path,
        *,
        budget_bytes: int | None = None,
        tenant_budget_bytes: TenantBudget = None,
        sealer: Sealer | None = None,
    ) -> Self:
        """Take *folder* and what is parked in it; raise StoreUnusable.

        The folder is made if it isn't there. Bytes are counted before they are sealed.
        Without *sealer* nothing is encrypted.
        """
        if budget_bytes is not None and budget_bytes < MINIMUM_BUDGET_BYTES:
            raise StoreUnusable(
                f"a disk budget of {budget_bytes:,} bytes holds no state; "
                f"give at least {MINIMUM_BUDGET_BYTES:,}"
            )
        shelf = Shelf(budget_bytes, tenant_budget_bytes)
        return await to_its_end(
            cls._open(Path(folder), sealer or PlainSealer(), shelf),
            unseen=lambda store: store._disk.close(),
        )

    async def park(self, state: KVState, *, through: bool = False) -> Receipt:
        """Keep *state* under its key; raise StoreFull when it can't ever fit.

        Raises StoreFull when the disk is full, too, and StoreUnavailable when it fails.
        """
        stop = Event()
        async with self._lock(state.manifest.key):
            return await to_its_end(
                self._park(state, stop),
                hurry=stop.set,
                unseen=lambda receipt: self._tell_lost(receipt.evicted),
            )

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        """Return the verified state; raise StateMissing or StateCorrupt.

        Raises StoreUnavailable when the disk fails. States that share the wrong bytes
        of a corrupt one are lost with it.
        """
        async with self._lock(key):
            return await to_its_end(self._fetch(key))

    async def find(self, key: str) -> Manifest:
        """Return what the key holds; raise StateMissing."""
        return self._shelf.get(key)

    async def drop(self, key: str) -> None:
        """Forget the key; dropping what isn't there is no error."""
        async with self._lock(key):
            await to_its_end(self._drop(key))

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
        """Let go of the folder; the states in it stay."""
        self._disk.close()

    @classmethod
    async def _open(cls, path: Path, sealer: Sealer, shelf: Shelf) -> Self:
        files, found = await anyio.to_thread.run_sync(StateFiles.open, path, sealer)
        store = cls(files, shelf)
        await store._take(found)
        return store

    def _lock(self, key: str) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def _take(self, found: Found) -> None:
        """Enter what the folder held; the budget may be smaller than it was."""
        self._rows.update(found.rows)
        if found.unreadable:
            self._refused["corrupt"] += found.unreadable
        garbage: list[FileName] = []
        # Held, because a state may need what an earlier one leaves behind.
        self._hold(found.rows)
        for manifest, name in found.states:
            try:
                change = self._shelf.add(manifest)
            except StoreFull:
                self._refused["full"] += 1
                garbage.append(name)
                continue
            self._manifests[manifest.key] = name
            garbage += self._let_go(change)
        await self._clean(garbage + self._release(found.rows))

    async def _park(self, state: KVState, stop: Event) -> Receipt:
        rest = state.manifest
        whole = self._shelf.whole(rest)
        try:
            self._shelf.check(whole)
        except StoreFull:
            self._refused["full"] += 1
            raise
        before = self._shelf.get(rest.key) if rest.first_token else None
        brought = zip(places_of(rest), state.payloads, strict=True)
        new = {place: data for place, data in brought if place not in self._rows}
        places, garbage = places_of(whole), list[FileName]()
        self._hold(places)
        try:
            written = await anyio.to_thread.run_sync(self._disk.write, whole, new, stop)
            garbage = [written.manifest, *written.rows.values()]
            self._check_not_overtaken(whole, before, written)
            evicted, garbage = self._commit(whole, written)
        except OSError as error:
            raise self._failure(rest.key, error) from error
        finally:
            await self._clean(garbage + self._release(places))
        return Receipt(tier=_TIER, nbytes=rest.kv_bytes, evicted=evicted)

    def _check_not_overtaken(
        self, whole: Manifest, before: Manifest | None, written: Written
    ) -> None:
        """Raise if what the new state builds upon was lost while it was written."""
        if before is not None and not self._shelf.holds(before):
            raise StateMissing(
                f"what state {whole.key!r} continues was lost while it was parked"
            )
        if any(
            place not in self._rows and place not in written.rows
            for place in places_of(whole)
        ):
            self._refused["unavailable"] += 1
            raise StoreUnavailable(
                f"rows that state {whole.key!r} shares were found to be corrupt while "
                f"it was parked"
            )

    def _commit(
        self, whole: Manifest, written: Written
    ) -> tuple[tuple[str, ...], list[FileName]]:
        """Enter a written state; return whom it displaced, and files to remove."""
        change = self._shelf.add(whole)
        before = self._manifests.get(whole.key)
        garbage = [] if before is None else [before]
        self._manifests[whole.key] = written.manifest
        garbage += self._let_go(change)
        for place, name in written.rows.items():
            # Another call may have written the same segment at the same time.
            if self._rows.setdefault(place, name) != name:
                garbage.append(name)
        return change.evicted, garbage

    async def _fetch(self, key: str) -> tuple[KVState, Receipt]:
        manifest = self._shelf.get(key)
        places, garbage = places_of(manifest), list[FileName]()
        rows = {place: self._rows[place] for place in places}
        self._hold(places)
        try:
            state, error, wrong = await anyio.to_thread.run_sync(
                self._disk.read, manifest, self._manifests[key], rows
            )
            if error is not None:
                garbage = self._condemn(
                    manifest, {place: rows[place] for place in wrong}
                )
                raise error
        except OSError as failure:
            raise self._failure(key, failure) from failure
        finally:
            await self._clean(garbage + self._release(places))
        if self._shelf.holds(manifest):
            self._shelf.use(key)
        return state, Receipt(tier=_TIER, nbytes=manifest.kv_bytes)

    def _condemn(
        self, manifest: Manifest, wrong: dict[Place, FileName]
    ) -> list[FileName]:
        """Take out a corrupt state, and those that share its wrong segments."""
        self._refused["corrupt"] += 1
        # Another fetch may have found the same, and new files be in their place.
        wrong = {place: name for place, name in wrong.items() if self._has(place, name)}
        change = self._shelf.condemn(wrong)
        garbage = self._let_go(change)
        for place in wrong:
            # Held or not: nobody may come to share it any more.
            if (name := self._rows.pop(place, None)) is not None:
                garbage.append(name)
        if self._shelf.holds(manifest):
            garbage += self._remove(manifest.key)
        self._tell_lost(key for key in change.evicted if key != manifest.key)
        return garbage

    async def _drop(self, key: str) -> None:
        await self._clean(self._remove(key))

    def _remove(self, key: str) -> list[FileName]:
        freed = self._shelf.remove(key).freed
        return self._let_go(Change(freed=freed, evicted=(key,)))

    def _let_go(self, change: Change) -> list[FileName]:
        """Return the files that a change leaves to nobody, manifests first."""
        manifests = [
            self._manifests.pop(key) for key in change.evicted if key in self._manifests
        ]
        return manifests + self._unused(change.freed)

    def _unused(self, places: Iterable[Place]) -> list[FileName]:
        return [
            self._rows.pop(place)
            for place in dict.fromkeys(places)
            if place in self._rows
            and place not in self._shelf
            and not self._held[place]
        ]

    def _has(self, place: Place, name: FileName) -> bool:
        return self._rows.get(place) == name

    def _hold(self, places: Iterable[Place]) -> None:
        for place in places:
            self._held[place] += 1

    def _release(self, places: Iterable[Place]) -> list[FileName]:
        """Hold *places* no longer; return the files that nobody needs now."""
        for place in places:
            self._held[place] -= 1
            if not self._held[place]:
                del self._held[place]
        return self._unused(places)

    async def _clean(self, garbage: list[FileName]) -> None:
        if garbage:
            failures = await anyio.to_thread.run_sync(self._disk.remove, garbage)
            if failures:
                self._refused["unavailable"] += failures

    def _tell_lost(self, keys: Iterable[str]) -> None:
        if self._shelf.owner is not None:
            for key in keys:
                self._shelf.owner.lost(key)

    def _failure(self, key: str, error: OSError) -> StateStoreError:
        folder = str(self._disk.path)
        if error.errno in _FULL:
            self._refused["full"] += 1
            return StoreFull(
                f"state {key!r} does not fit into {folder!r}: {error.strerror}"
            )
        self._refused["unavailable"] += 1
        return StoreUnavailable(
            f"state {key!r} can't be kept in {folder!r}: {error.strerror}"
        )
