"""Parked in whichever store, over many turns, a real engine says the same tokens.

Two sessions share one slot, so each of their turns begins with a restore; every park
but the first carries only the rows that are new.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from kvalet import DiskStore, LlamaBackend, MemoryStore, Runtime, Sampling, TieredStore
from kvalet.scheduler import Copied, Event, Restored, RestoreFailed
from kvalet.state_store import Inventory
from kvalet.state_store.aes_gcm import AesGcmSealer
from kvalet.state_store.redis import RedisStore

from ..servers import Server, any_program, serve, serve_cluster, shared_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXACT = Sampling(ignore_stop=True)
TURNS = 9
Opener = Callable[[Path], AbstractAsyncContextManager[Inventory]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(model_path: Path) -> AsyncGenerator[LlamaBackend, None]:
    """A real engine with one slot, on a tiny and on the default model."""
    async with aclosing(
        await LlamaBackend.start(model_path=model_path, slots=1, context_tokens=1024)
    ) as backend:
        yield backend


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(backend: LlamaBackend) -> list[tuple[int, ...]]:
    """What a session says that is alone and never leaves the accelerator."""
    said: list[tuple[int, ...]] = []
    async with (
        Runtime(backend, policy="keep") as runtime,
        runtime.session() as session,
    ):
        for number in range(TURNS):
            reply = await session.turn(prompt(number), max_tokens=6, sampling=EXACT)
            said.append(reply.token_ids)
    return said


def prompt(number: int) -> list[int]:
    """Return what a turn adds to the conversation."""
    return [(number * 31 + token * 7) % 200 + 20 for token in range(20)]


# ---- the stores ----------------------------------------------------------------------


@asynccontextmanager
async def host(folder: Path) -> AsyncGenerator[Inventory, None]:
    """Host memory."""
    yield MemoryStore(None)


@asynccontextmanager
async def disk(folder: Path) -> AsyncGenerator[Inventory, None]:
    """A folder."""
    async with aclosing(await DiskStore.open(folder / "store")) as store:
        yield store


@asynccontextmanager
async def sealed_disk(folder: Path) -> AsyncGenerator[Inventory, None]:
    """A folder of encrypted files."""
    sealer = AesGcmSealer({"first": bytes(range(32))})
    opened = await DiskStore.open(folder / "store", sealer=sealer)
    async with aclosing(opened) as store:
        yield store


@asynccontextmanager
async def redis(folder: Path) -> AsyncGenerator[Inventory, None]:
    """A Redis server."""
    opened = await RedisStore.open(shared_server().url, prefix=folder.name)
    async with aclosing(opened) as store:
        yield store


@asynccontextmanager
async def sealed_redis(folder: Path) -> AsyncGenerator[Inventory, None]:
    """A Redis server that sees nothing in plain."""
    sealer = AesGcmSealer({"first": bytes(range(32))})
    url = shared_server().url
    opened = await RedisStore.open(url, prefix=folder.name, sealer=sealer)
    async with aclosing(opened) as store:
        yield store


@asynccontextmanager
async def tiers(folder: Path) -> AsyncGenerator[Inventory, None]:
    """Host memory that holds nothing for long, over Redis."""
    below = await RedisStore.open(shared_server().url, prefix=folder.name)
    async with aclosing(TieredStore([MemoryStore(1), below])) as store:
        yield store


@asynccontextmanager
async def cluster(folder: Path) -> AsyncGenerator[Inventory, None]:
    """A cluster of three."""
    with serve_cluster(any_program()) as nodes:
        ports = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        opened = await RedisStore.open(f"redis+cluster://{ports}")
        async with aclosing(opened) as store:
            yield store


STORES: dict[str, Opener] = {
    "host": host,
    "disk": disk,
    "disk, encrypted": sealed_disk,
    "redis": redis,
    "redis, encrypted": sealed_redis,
    "host over redis": tiers,
}


# ---- the tests -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "opener",
    [
        *(pytest.param(opener, id=name) for name, opener in STORES.items()),
        pytest.param(cluster, id="redis cluster", marks=pytest.mark.slow),
    ],
)
async def test_no_store_changes_a_token(
    backend: LlamaBackend,
    expected: list[tuple[int, ...]],
    opener: Opener,
    tmp_path: Path,
) -> None:
    """Nine turns, eight restores, each verified; nothing is left in the store."""
    events: list[Event] = []
    async with opener(tmp_path) as store:
        said = await talk(backend, store, events)
        assert await left_in(store) == []
    assert said == expected
    restored = [e for e in events if isinstance(e, Restored) and e.session == "a"]
    assert len(restored) == TURNS - 1
    assert not [event for event in events if isinstance(event, RestoreFailed)]
    row_bytes = backend.capabilities.bytes_per_token
    copied = [e for e in events if isinstance(e, Copied) and e.session == "a"]
    assert [event.nbytes for event in copied[1:]] == [26 * row_bytes] * (TURNS - 1)


async def test_a_redis_that_forgets_changes_no_token(
    backend: LlamaBackend, expected: list[tuple[int, ...]], tmp_path: Path
) -> None:
    """Restarted without persistence between turns, it costs prefills, and no more."""
    events: list[Event] = []
    with serve(any_program()) as server:
        opened = await RedisStore.open(server.url)
        async with aclosing(opened) as store:
            said = await talk(backend, store, events, restarted=server)
            assert await left_in(store) == []
    assert said == expected
    assert [event for event in events if isinstance(event, RestoreFailed)]
    restored = [e for e in events if isinstance(e, Restored) and e.session == "a"]
    assert 0 < len(restored) < TURNS - 1


async def left_in(store: Inventory) -> list[str]:
    """Return the keys of what is parked."""
    keys = store.keys()
    return [key async for key in keys]


async def talk(
    backend: LlamaBackend,
    store: Inventory,
    events: list[Event],
    restarted: Server | None = None,
) -> list[tuple[int, ...]]:
    """Return what a session says while another one takes the slot in between."""
    said: list[tuple[int, ...]] = []
    async with (
        Runtime(
            backend, store=store, policy="park", observers=[events.append]
        ) as runtime,
        runtime.session("a") as session,
        runtime.session("b") as other,
    ):
        for number in range(TURNS):
            new = prompt(number)
            reply = await session.turn(new, max_tokens=6, sampling=EXACT)
            said.append(reply.token_ids)
            async with session.tool("Bash"):
                await other.turn(new[:4], max_tokens=1, sampling=EXACT)
                if restarted is not None and number == TURNS // 2:
                    restarted.kill()
                    restarted.start()
        runtime.scheduler.check_integrity()
    return said
