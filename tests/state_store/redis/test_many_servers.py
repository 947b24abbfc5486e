"""A cluster, and a primary that fails over to its replica."""

import asyncio
import os

import pytest

from kvalet.state_store import (
    StateLeased,
    StateMissing,
    StoreUnavailable,
)
from kvalet.state_store.redis import RedisStore
from tests.servers import program_named, serve_cluster, serve_sentinels
from tests.state_store.states import make_rows, make_state

from .conftest import OpenStore

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


@pytest.mark.parametrize("name", ["valkey", "redis"])
async def test_a_cluster(name: str, open_store: OpenStore) -> None:
    """States spread over the nodes; all that can be done with them can be done."""
    with serve_cluster(program_named(name)) as nodes:
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{n.port}" for n in nodes)
        store = await open_store(url=url)
        ids = list(range(5_000))
        states = [make_state(f"t/{n}", os.urandom(2_000_000)) for n in range(8)]
        for state in states:
            await store.park(state)
        await store.park(make_rows("t/rows", ids[:3_000]))
        rest = make_rows("t/rows", ids, 3_000)
        await store.park(rest)
        assert all(":0\r" not in node.ask("DBSIZE") for node in nodes)
        for state in states:
            assert (await store.fetch(state.manifest.key))[0] == state
        whole = rest.behind(make_rows("t/rows", ids[:3_000]))
        assert (await store.fetch("t/rows"))[0] == whole
        keys = store.keys()
        expected = {state.manifest.key for state in states} | {"t/rows"}
        assert {key async for key in keys} == expected
        other = await open_store("other", url=url)
        with pytest.raises(StateLeased):
            await other.fetch("t/rows")
        await store.sweep()
        for key in expected:
            await store.drop(key)
        assert all(":0\r" in node.ask("DBSIZE") for node in nodes)


@pytest.mark.parametrize("name", ["valkey", "redis"])
async def test_a_slot_that_moves(name: str, open_store: OpenStore) -> None:
    """When slots change their node, states are found where they are now, or missing."""
    with serve_cluster(program_named(name)) as nodes:
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{n.port}" for n in nodes)
        store = await open_store(url=url)
        await store.park(make_state("t/a", bytes(3_000_000)))
        owner = nodes[1].ask("CLUSTER", "MYID").split("\r\n")[1]
        nodes[0].ask("FLUSHALL")
        for node in nodes:
            for slot in range(0, 16384 // 3):
                node.ask("CLUSTER", "SETSLOT", str(slot), "NODE", owner)
        for number in range(5):
            key = f"t/{number}"
            await store.park(make_state(key, os.urandom(3_000_000)))
            await store.fetch(key)


@pytest.mark.parametrize("name", ["valkey", "redis"])
async def test_a_fail_over(name: str, open_store: OpenStore) -> None:
    """When the primary dies the store goes on with its replica, and what that has."""
    with serve_sentinels(program_named(name)) as servers:
        store = await open_store(url=servers.url)
        before = make_state("t/a", os.urandom(3_000_000))
        await store.park(before)
        servers.primary.kill()
        with pytest.raises(StoreUnavailable):
            await store.fetch("t/a")
        async with asyncio.timeout(30):
            while not (await store.stat()).available:
                await asyncio.sleep(0.05)
        assert await fetched_or_missing(store) in (before, None)
        after = make_state("t/a", os.urandom(3_000_000))
        await store.park(after)
        assert (await store.fetch("t/a"))[0] == after
        assert ":0\r" not in servers.replica.ask("DBSIZE")


async def fetched_or_missing(store: RedisStore) -> object:
    """Return the state, or None; replication may not have got so far."""
    try:
        state, _ = await store.fetch("t/a")
    except StateMissing:
        return None
    return state
