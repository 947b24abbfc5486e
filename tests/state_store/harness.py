"""The stores under test, each with what only tests do to a store.

A new store joins the contract suite and the machine with one line in ``STORES``.
"""

import contextlib
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from kvalet.state_store import (
    DiskStore,
    Inventory,
    MemoryStore,
    StateMissing,
    tenant_of,
)
from kvalet.state_store.aes_gcm import AesGcmSealer
from kvalet.state_store.redis import RedisStore
from kvalet.state_store.sealing import PlainSealer, Sealer
from kvalet.state_store.shelf import TenantBudget
from kvalet.state_store.tiered import TieredStore
from tests.servers import shared_server


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a store is opened with."""

    budget_bytes: int | None = None
    tenant_budget_bytes: TenantBudget = None


class Harness(Protocol):
    """An open store, and what only tests do to it."""

    @property
    def store(self) -> Inventory:
        """The store; another one after ``reopen``."""
        ...

    async def corrupt(self, key: str, segment: int) -> None:
        """Flip a bit where the store keeps that segment of the state."""
        ...

    async def reopen(self) -> None:
        """Close the store, and open it as the next process would."""
        ...

    async def leftovers(self) -> list[str]:
        """Return what lies outside of the process for the sake of states."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of store: how it is opened, and which promises it makes.

    ``has_budget``: it keeps byte budgets of its own, and counts what it stores.
    ``survives``: what is parked is there after ``reopen``.
    """

    open: Callable[[Limits], AbstractAsyncContextManager[Harness]]
    has_budget: bool = True
    survives: bool = False


class MemoryHarness:
    """Host memory."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.store = MemoryStore(limits.budget_bytes, limits.tenant_budget_bytes)

    async def corrupt(self, key: str, segment: int) -> None:
        # It hands out the very buffers that it keeps.
        state, _ = await self.store.fetch(key)
        payload = state.payloads[segment]
        assert isinstance(payload, memoryview)
        payload[0] ^= 1

    async def reopen(self) -> None:
        await self.store.aclose()
        self.store = MemoryStore(
            self._limits.budget_bytes, self._limits.tenant_budget_bytes
        )

    async def leftovers(self) -> list[str]:
        return []


@asynccontextmanager
async def open_memory(limits: Limits) -> AsyncGenerator[Harness]:
    """Open host memory."""
    harness = MemoryHarness(limits)
    try:
        yield harness
    finally:
        await harness.store.aclose()


class DiskHarness:
    """A folder."""

    def __init__(
        self, limits: Limits, folder: Path, sealer: Sealer, store: DiskStore
    ) -> None:
        self._limits = limits
        self._folder = folder
        self._sealer = sealer
        self.store = store

    @classmethod
    async def open(cls, limits: Limits, folder: Path, sealer: Sealer) -> "DiskHarness":
        return cls(limits, folder, sealer, await open_folder(limits, folder, sealer))

    async def corrupt(self, key: str, segment: int) -> None:
        manifest = await self.store.find(key)
        address = manifest.segments[segment].address
        flip(rows_file(self._folder, key, address, self._sealer), -1)

    async def reopen(self) -> None:
        await self.store.aclose()
        self.store = await open_folder(self._limits, self._folder, self._sealer)

    async def leftovers(self) -> list[str]:
        return [
            str(path.relative_to(self._folder))
            for path in self._folder.glob("*/*")
            if path.parent.name != "store"
        ]


@asynccontextmanager
async def open_disk(
    limits: Limits, sealer: Sealer | None = None
) -> AsyncGenerator[Harness]:
    """Open a fresh folder."""
    with tempfile.TemporaryDirectory(prefix="kvalet-test-") as name:
        folder = Path(name) / "states"
        harness = await DiskHarness.open(limits, folder, sealer or PlainSealer())
        try:
            yield harness
        finally:
            await harness.store.aclose()


def open_sealed_disk(limits: Limits) -> AbstractAsyncContextManager[Harness]:
    """Open a fresh folder that is encrypted."""
    return open_disk(limits, AesGcmSealer({"new": bytes(32), "old": b"o" * 32}))


async def open_folder(limits: Limits, folder: Path, sealer: Sealer) -> DiskStore:
    """Open a disk store."""
    return await DiskStore.open(
        folder,
        budget_bytes=limits.budget_bytes,
        tenant_budget_bytes=limits.tenant_budget_bytes,
        sealer=sealer,
    )


def rows_file(
    folder: Path, key: str, address: str, sealer: Sealer | None = None
) -> Path:
    """Return the file that a disk store keeps a segment of a state in."""
    sealer, tenant = sealer or PlainSealer(), tenant_of(key)
    pattern = f"{sealer.name(tenant, '')}/{sealer.name(tenant, address)}.*.rows"
    (path,) = folder.glob(pattern)
    return path


def flip(path: Path, byte: int = 0) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


class RedisHarness:
    """Keys of our own in a server that the tests share."""

    def __init__(self, sealer: Sealer, prefix: str, store: RedisStore) -> None:
        self._sealer = sealer
        self._prefix = prefix
        self._server = shared_server()
        self.store = store

    @classmethod
    async def open(cls, sealer: Sealer) -> "RedisHarness":
        prefix = f"test-{uuid4().hex}"
        return cls(sealer, prefix, await open_server(sealer, prefix))

    async def corrupt(self, key: str, segment: int) -> None:
        address = (await self.store.find(key)).segments[segment].address
        name = self._sealer.name(tenant_of(key), address)
        chunk = f"{self._prefix}:{{s{name}}}:0"
        # The byte behind the first: of a sealed chunk that says which key it is.
        bit = self._server.ask("GETBIT", chunk, "7")
        self._server.ask("SETBIT", chunk, "7", "0" if ":1" in bit else "1")

    async def reopen(self) -> None:
        await self.store.aclose()
        self.store = await open_server(self._sealer, self._prefix)

    async def leftovers(self) -> list[str]:
        answer = self._server.ask("KEYS", f"{self._prefix}:*")
        return [line for line in answer.split("\r\n") if line.startswith("test-")]


@asynccontextmanager
async def open_redis(sealer: Sealer) -> AsyncGenerator[Harness]:
    """Open a store in a server that was started for all tests."""
    harness = await RedisHarness.open(sealer)
    try:
        yield harness
    finally:
        parked = harness.store.keys()
        for key in [key async for key in parked]:
            await harness.store.drop(key)
        await harness.store.aclose()


async def open_server(sealer: Sealer, prefix: str) -> RedisStore:
    """Open a Redis store; a machine that is busy must not look like a slow server."""
    return await RedisStore.open(
        shared_server().url, sealer=sealer, prefix=prefix, command_timeout_s=10.0
    )


def open_plain_redis(limits: Limits) -> AbstractAsyncContextManager[Harness]:
    """Open Redis as it is."""
    return open_redis(PlainSealer())


def open_sealed_redis(limits: Limits) -> AbstractAsyncContextManager[Harness]:
    """Open Redis for what is encrypted."""
    return open_redis(AesGcmSealer({"new": bytes(32), "old": b"o" * 32}))


class TieredHarness:
    """Host memory over a folder."""

    def __init__(self, host: MemoryHarness, disk: DiskHarness) -> None:
        self._host = host
        self._disk = disk
        self.store = TieredStore([host.store, disk.store])

    async def corrupt(self, key: str, segment: int) -> None:
        await self.store.settle()
        with contextlib.suppress(StateMissing):  # it has not been promoted yet
            await self._host.corrupt(key, segment)
        await self._disk.corrupt(key, segment)

    async def reopen(self) -> None:
        await self.store.aclose()
        await self._host.reopen()
        await self._disk.reopen()
        self.store = TieredStore([self._host.store, self._disk.store])

    async def leftovers(self) -> list[str]:
        await self.store.settle()
        return await self._disk.leftovers()


@asynccontextmanager
async def open_tiers(limits: Limits) -> AsyncGenerator[Harness]:
    """Open host memory over a fresh folder."""
    with tempfile.TemporaryDirectory(prefix="kvalet-test-") as name:
        disk = await DiskHarness.open(limits, Path(name) / "states", PlainSealer())
        harness = TieredHarness(MemoryHarness(limits), disk)
        try:
            yield harness
        finally:
            await harness.store.aclose()


STORES: dict[str, Kind] = {
    "memory": Kind(open=open_memory),
    "disk": Kind(open=open_disk, survives=True),
    "disk, encrypted": Kind(open=open_sealed_disk, survives=True),
    "redis": Kind(open=open_plain_redis, has_budget=False, survives=True),
    "host over disk": Kind(open=open_tiers, has_budget=False, survives=True),
    "redis, encrypted": Kind(open=open_sealed_redis, has_budget=False, survives=True),
}
