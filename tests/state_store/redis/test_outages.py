"""A server that goes away, hangs or is full: no call waits long, and all mends."""

import asyncio
import os
from collections.abc import Generator

import pytest

from kvalet.state_store import (
    StateMissing,
    StateStoreError,
    StoreUnavailable,
)
from kvalet.state_store.redis import RedisStore
from tests.servers import Server, any_program, serve
from tests.state_store.states import make_state

from .conftest import OpenStore

pytestmark = pytest.mark.asyncio

TIMEOUT_S = 0.2


@pytest.fixture
def own() -> Generator[Server]:
    """A server that the test may do anything to."""
    with serve(any_program()) as server:
        yield server


async def seconds_until_refused(store: RedisStore) -> float:
    """Return how long a fetch takes that has to fail."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(StoreUnavailable):
        await store.fetch("t/a")
    return loop.time() - began_s


async def until_available(store: RedisStore) -> None:
    """Wait until the store has found out that the server works again."""
    async with asyncio.timeout(15):
        while not (await store.stat()).available:
            await asyncio.sleep(0.01)


async def test_a_server_that_was_killed(own: Server, open_store: OpenStore) -> None:
    """Refused at once; when it is back without its data, the states are missing."""
    store = await open_store(url=own.url)
    await store.park(make_state("t/a", bytes(5_000_000)))
    own.kill()
    assert await seconds_until_refused(store) < 1
    assert await seconds_until_refused(store) < 0.01
    assert not (await store.stat()).available
    own.start()
    await until_available(store)
    with pytest.raises(StateMissing):
        await store.fetch("t/a")
    await store.park(make_state("t/a"))
    assert (await store.fetch("t/a"))[0] == make_state("t/a")
    refused = (await store.stat()).refused
    assert refused["unreachable"] >= 1 and refused["given_up"] >= 1


async def test_a_server_that_hangs(own: Server, open_store: OpenStore) -> None:
    """Two calls take their time in vain, further ones none; then it goes on."""
    store = await open_store(url=own.url, command_timeout_s=TIMEOUT_S)
    await store.park(make_state("t/a", bytes(5_000_000)))
    own.pause()
    for _ in range(2):
        assert await seconds_until_refused(store) < 2 * TIMEOUT_S + 0.2
    assert await seconds_until_refused(store) < 0.01
    own.resume()
    await until_available(store)
    assert (await store.fetch("t/a"))[0] == make_state("t/a", bytes(5_000_000))
    assert (await store.stat()).refused["timeout"] >= 2


async def test_a_server_that_hangs_while_chunks_travel(
    own: Server, open_store: OpenStore
) -> None:
    """Neither a park nor its cancelling waits longer than a command may take."""
    store = await open_store(url=own.url, command_timeout_s=TIMEOUT_S)
    loop = asyncio.get_running_loop()
    for cancel in (False, True):
        parking = asyncio.create_task(
            store.park(make_state("t/a", os.urandom(200_000_000)))
        )
        async with asyncio.timeout(10):
            while ":0" in own.ask("DBSIZE") or "kvalet" not in own.ask("KEYS", "*:1"):
                await asyncio.sleep(0)
        own.pause()
        began_s = loop.time()
        if cancel:
            parking.cancel()
        (error,) = await asyncio.gather(parking, return_exceptions=True)
        assert isinstance(error, asyncio.CancelledError if cancel else StoreUnavailable)
        assert loop.time() - began_s < 10 * TIMEOUT_S
        own.resume()
        await until_available(store)
        await store.drop("t/a")
        own.ask("FLUSHALL")


async def test_a_full_server_can_still_be_read(
    own: Server, open_store: OpenStore
) -> None:
    """Parks are refused, fetches aren't, and dropping makes room again."""
    store = await open_store(url=own.url)
    await store.park(make_state("t/a", bytes(5_000_000)))
    own.ask("CONFIG", "SET", "maxmemory", "4mb")
    with pytest.raises(StoreUnavailable, match="full"):
        await store.park(make_state("t/b", os.urandom(50_000)))
    with pytest.raises(StoreUnavailable, match="left alone"):
        await store.park(make_state("t/b", os.urandom(50_000)))
    assert (await store.fetch("t/a"))[0] == make_state("t/a", bytes(5_000_000))
    await store.drop("t/a")
    await until_available(store)
    await store.park(make_state("t/b"))
    assert (await store.stat()).refused["full"] >= 1


async def test_a_server_that_becomes_a_replica(
    own: Server, server: Server, open_store: OpenStore
) -> None:
    """Read-only is given up like dead, and found writable again."""
    store = await open_store(url=own.url)
    await store.park(make_state("t/a"))
    own.ask("REPLICAOF", "127.0.0.1", str(server.port))
    with pytest.raises(StoreUnavailable, match=r"read_only|unreachable|loading"):
        await store.park(make_state("t/b"))
    assert await seconds_until_refused(store) < 0.01
    own.ask("REPLICAOF", "NO", "ONE")
    await until_available(store)
    await store.park(make_state("t/b"))


async def test_what_a_failed_park_claimed_is_released_later(
    own: Server, open_store: OpenStore
) -> None:
    """When the server is back, the segments of a park that failed are let go."""
    store = await open_store(url=own.url, command_timeout_s=TIMEOUT_S)
    parking = asyncio.create_task(
        store.park(make_state("t/a", os.urandom(200_000_000)))
    )
    while "kvalet" not in own.ask("KEYS", "*:5"):
        await asyncio.sleep(0)
    own.pause()
    with pytest.raises(StateStoreError):
        await parking
    own.resume()
    async with asyncio.timeout(15):
        while "kvalet" in own.ask("KEYS", "*:{s*"):
            await asyncio.sleep(0.01)


async def test_what_could_not_be_dropped_is_dropped_later(
    own: Server, open_store: OpenStore
) -> None:
    """A drop that failed is done when the server is back, unless it was parked anew."""
    store = await open_store(url=own.url, command_timeout_s=TIMEOUT_S)
    for key in ("t/a", "t/b"):
        await store.park(make_state(key, os.urandom(50_000)))
    own.pause()
    for key in ("t/a", "t/b"):
        with pytest.raises(StoreUnavailable):
            await store.drop(key)
    own.resume()
    await until_available(store)
    await store.park(make_state("t/b"))
    async with asyncio.timeout(15):
        while (await store.stat()).states > 1:
            await asyncio.sleep(0.01)
    keys = store.keys()
    assert [key async for key in keys] == ["t/b"]
    assert (await store.fetch("t/b"))[0] == make_state("t/b")


async def test_idle_connections_that_were_closed_are_no_outage(
    own: Server, open_store: OpenStore
) -> None:
    """A server that closed what was idle is asked again over new connections."""
    store = await open_store(url=own.url)
    await store.park(make_state("t/a", bytes(5_000_000)))
    own.ask("CLIENT", "KILL", "TYPE", "normal")
    assert (await store.fetch("t/a"))[0] == make_state("t/a", bytes(5_000_000))
    assert (await store.stat()).refused == {}
