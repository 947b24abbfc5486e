"""Parked state in Redis: chunks first, the manifest last, a lease over both.

A state is there from the moment its manifest is. Before that there are only segments
which a sweep would remove. Those are named by their content, so writing one twice, or
two owners at once, does no harm; only the manifest needs the lease to guard it.
"""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self
from uuid import uuid4
from weakref import WeakValueDictionary

import anyio

from ..errors import (
    StateCorrupt,
    StateLeased,
    StateMissing,
    StateStoreError,
    StoreUnavailable,
    StoreUnusable,
)
from ..sealing import PlainSealer, Sealer
from ..state import KVState, Manifest
from ..store import Owner, Receipt, StoreStat
from .address import read_address
from .depot import Depot
from .faults import Failure
from .health import Health
from .held import HeldSessions
from .lanes import Lanes
from .layout import Layout, check_prefix
from .leases import Leases, Terms, read_manifest
from .scripts import PROBE
from .server import Server
from .setup import check, greet
from .sweep import Sweeper
from .transfer import ChunkMissing

_TIER: Final = "redis"
_SWEEP_EVERY_S: Final = 60.0
_SWEEP_SEGMENTS: Final = 2_000
_FAREWELL_S: Final = 1.0


class RedisStore:
    """Implements ``Inventory``; made by ``open``.

    It has no budget: what Redis takes is Redis's to say. Calls for one key wait for
    each other. Whoever parks or fetches a session owns it until it is dropped or the
    store closed; others get StateLeased meanwhile. ``stat`` counts the states of the
    sessions that are owned here, ``keys`` yields those of everybody.

    When the server fails, a call takes ``command_timeout_s`` or little more, and while
    it is known not to work no time at all; then StoreUnavailable is raised.
    """

    def __init__(
        self, server: Server, lanes: Lanes, layout: Layout, terms: Terms, leases: bool
    ) -> None:
        self._server = server
        self._lanes = lanes
        self._layout = layout
        self._takes_leases = leases
        self._held = HeldSessions()
        self._health = Health(self._probe, self._mended)
        self._leases = Leases(server, layout, self._held, terms, self._lost)
        self._depot = Depot(server, lanes, layout, self._held, self._leases, terms)
        self._sweeper = Sweeper(server, layout)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._renew_every_s = terms.lease_ms / 3000
        self._renew_now = asyncio.Event()
        self._to_drop: set[str] = set()
        self._closed = False
        self._owner: Owner | None = None
        self._notes: tuple[str, ...] = ()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        sealer: Sealer | None = None,
        prefix: str = "kvalet",
        ttl_s: float = 86_400.0,
        lease_s: float = 30.0,
        connections: int = 4,
        command_timeout_s: float = 0.5,
        owner_id: str | None = None,
        leases: bool = True,
    ) -> Self:
        """Connect and try what will be needed; raise StoreUnusable with one sentence.

        A state that nobody touches for *ttl_s* is gone. *owner_id* tells processes
        apart; by default it is new each time. Without *leases*, fetching a state does
        not make its session ours: for looking at what others have.
        """
        address = read_address(url)
        check_prefix(prefix)
        for name, value in (
            ("ttl_s", ttl_s),
            ("lease_s", lease_s),
            ("connections", connections),
            ("command_timeout_s", command_timeout_s),
        ):
            if not value > 0:
                raise StoreUnusable(f"{name} is more than 0, not {value}")
        layout = Layout(prefix, sealer or PlainSealer())
        terms = Terms(
            owner_id=owner_id or uuid4().hex,
            lease_ms=max(1, round(lease_s * 1000)),
            ttl_ms=max(1, round(ttl_s * 1000)),
        )
        server = Server(address, timeout_s=command_timeout_s, connections=connections)
        lanes = Lanes(server.endpoint(), connections)
        store = cls(server, lanes, layout, terms, leases)
        try:
            await lanes.in_thread(lambda: greet(address, server.endpoint()))
            store._notes = await check(server, address, layout)
        except BaseException:
            await store.aclose()
            raise
        store._begin()
        return store

    @property
    def notes(self) -> tuple[str, ...]:
        """What about the server's set-up the user should know; sentences."""
        return self._notes

    async def park(self, state: KVState, *, through: bool = False) -> Receipt:
        """Keep *state* under its key.

        Raises StateLeased, StoreUnavailable, and StateMissing where it continues what
        is not there.
        """
        async with self._alone(state.manifest.key):
            try:
                with self._patiently(), self._attempt(writes=True):
                    await self._depot.park(state)
                self._to_drop.discard(state.manifest.key)
            finally:
                if self._depot.owing:
                    self._renew_now.set()
        return Receipt(tier=_TIER, nbytes=state.manifest.kv_bytes)

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        """Return the verified state.

        Raises StateMissing, StateCorrupt, StateLeased or StoreUnavailable.
        """
        async with self._alone(key):
            with self._patiently(), self._attempt():
                if self._takes_leases:
                    state = await self._depot.fetch(key)
                    self._to_drop.discard(key)  # somebody wants it after all
                else:
                    state = await self._depot.read(key, await self._look(key))
        if self._depot.is_stale(key):
            self._start(self._refresh(key))
        return state, Receipt(tier=_TIER, nbytes=state.manifest.kv_bytes)

    async def find(self, key: str) -> Manifest:
        """Return what the key holds, whoever owns it; raise StateMissing."""
        with self._attempt():
            return await self._look(key)

    async def drop(self, key: str) -> None:
        """Forget the key; raise StateLeased if another owns it.

        If the server fails, it is tried again as long as the session is ours.
        """
        async with self._alone(key):
            try:
                with self._attempt():
                    await self._depot.drop(key)
            except StoreUnavailable:
                self._to_drop.add(key)
                raise

    async def stat(self) -> StoreStat:
        """Return what is parked of the sessions that are owned here."""
        return StoreStat(
            states=self._held.states,
            stored_bytes=self._held.stored_bytes,
            budget_bytes=None,
            evictions=0,
            tier=_TIER,
            available=self._health.available,
            refused=dict(self._health.refused),
        )

    async def keys(self) -> AsyncIterator[str]:
        """Yield the key of every state, whoever parked it."""
        with self._attempt():
            async for place in self._server.scan(self._layout.manifests):
                sealed: bytes | None = await self._server.ask("HGET", place, "k")
                if sealed is not None:
                    with suppress(StateCorrupt):
                        yield self._depot.key_in(self._layout.name_in(place), sealed)

    def serve(self, owner: Owner) -> None:
        """Have *owner* hear what is lost from now on."""
        self._owner = owner

    async def sweep(self, limit: int = _SWEEP_SEGMENTS) -> int:
        """Let go of segments whose states are gone, among the next *limit* of them.

        Returns how many claims were released. Goes on where it stopped; runs by itself
        now and then.
        """
        with self._attempt():
            return await self._sweeper.sweep(limit)

    async def aclose(self) -> None:
        """Give every lease back and close the connections; the states stay."""
        self._closed = True
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._health.aclose()
        await self._sweeper.aclose()
        with anyio.move_on_after(_FAREWELL_S, shield=True):
            if self._health.reachable:
                with suppress(*Failure):
                    await self._leases.let_go(list(self._held))
        self._lanes.close()
        with anyio.move_on_after(_FAREWELL_S, shield=True):
            await self._server.aclose()

    async def _look(self, key: str) -> Manifest:
        keys = self._layout.session(key)
        data: bytes | None = await self._server.ask("HGET", keys.manifest, "d")
        if data is None:
            raise StateMissing(f"no state is parked under {key!r}")
        return read_manifest(self._layout.sealer, key, keys, data)

    @contextmanager
    def _attempt(self, *, writes: bool = False) -> Generator[None]:
        """Raise StoreUnavailable for whatever the server or the network fails with."""
        self._health.check(writes=writes)
        try:
            yield
        except Failure as error:
            raise self._health.failed(error) from error
        except StateStoreError as error:
            self._health.worked()
            if (reason := _reason(error)) is not None:
                self._health.refused[reason] += 1
            raise
        self._health.worked()

    @contextmanager
    def _patiently(self) -> Generator[None]:
        """If the caller gives up, find out whether that is the server's fault."""
        try:
            yield
        except asyncio.CancelledError:
            if not self._closed:
                self._start(self._ask_after())
            raise

    async def _ask_after(self) -> None:
        with suppress(StateStoreError), self._attempt():
            await self._server.ping()

    def _alone(self, key: str) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    def _begin(self) -> None:
        self._start(self._renew_forever())
        self._start(self._sweep_forever())

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refresh(self, key: str) -> None:
        async with self._alone(key):
            with suppress(StateStoreError), self._attempt():
                await self._depot.refresh(key)

    async def _renew_forever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._renew_every_s):
                    await self._renew_now.wait()
            self._renew_now.clear()
            if self._health.reachable:
                with suppress(StateStoreError), self._attempt():
                    await self._leases.renew()
                    await self._settle()

    async def _settle(self) -> None:
        for key in self._depot.owing:
            async with self._alone(key):
                await self._depot.settle(key)
        for key in tuple(self._to_drop):
            async with self._alone(key):
                if key in self._to_drop and self._held.get(key) is not None:
                    await self._depot.drop(key)
            self._to_drop.discard(key)

    async def _sweep_forever(self) -> None:
        while True:
            if self._health.reachable:
                with suppress(StateStoreError):
                    await self.sweep()
            await asyncio.sleep(_SWEEP_EVERY_S)

    async def _probe(self) -> None:
        self._lanes.forget()
        await self._server.forget()
        await self._server.ping()
        await self._server.run(PROBE, [self._layout.session_named("probe").lease])

    def _mended(self) -> None:
        # Leases may have run out, and states may be gone, while nobody could look.
        self._renew_now.set()

    def _lost(self, key: str) -> None:
        if self._owner is not None:
            self._owner.lost(key)


def _reason(error: StateStoreError) -> str | None:
    """Return what a state that was there and not given out is counted as."""
    match error:
        case StateLeased():
            return "leased"
        case StateCorrupt():
            return "corrupt"
        case ChunkMissing():
            return "chunk_missing"
        case _:
            return None
