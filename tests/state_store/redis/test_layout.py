"""What lies in Redis: which keys, for how long, how often, under which names."""

import asyncio
import os

import pytest

from kvalet.state_store import (
    KVState,
    StateCorrupt,
    StateMissing,
    StoreUnusable,
    token_blocks,
)
from kvalet.state_store.redis import RedisStore
from kvalet.state_store.redis.layout import CHUNK_BYTES, Layout
from kvalet.state_store.sealing import PlainSealer
from tests.servers import Server
from tests.state_store.states import make_rows, make_state

from .conftest import OpenStore

pytestmark = pytest.mark.asyncio

SECRET = "Zebra"


def keys_in(server: Server) -> list[str]:
    """Return every key of the server."""
    return [word for word in server.ask("KEYS", "*").split("\r\n") if "kvalet:" in word]


def chunks_in(server: Server) -> list[str]:
    """Return the keys of all chunks."""
    return sorted(key for key in keys_in(server) if key.rsplit(":", 1)[1].isdecimal())


def number(answer: str) -> int:
    """Return the number that the server answered."""
    return int(answer[1:])


def written_bytes(server: Server) -> int:
    """Return how many bytes the server has received."""
    text = server.ask("INFO", "stats").split("total_net_input_bytes:")[1]
    return int(text.split("\r\n")[0])


def large_rows(first_token: int, end_token: int) -> KVState:
    """Return tokens of a state with rows of 4 KiB."""
    blocks = token_blocks(first_token, end_token)
    return KVState.seal_segments(
        key="t/a",
        model="m",
        engine="e",
        layout="l",
        token_ids=range(end_token),
        first_token=first_token,
        ends=[end for _, end in blocks],
        payloads=[os.urandom((end - start) * 4096) for start, end in blocks],
    )


async def test_every_key_expires_and_tells_nothing(
    server: Server, open_store: OpenStore
) -> None:
    """Keys have a time to live, segments more of it, and show no names."""
    store = await open_store(ttl_s=100)
    await store.park(make_state(f"{SECRET}/{SECRET}", os.urandom(3_000_000)))
    lives_ms = {key: number(server.ask("PTTL", key)) for key in keys_in(server)}
    assert len(lives_ms) == 3 + 1 + 3
    for key, life_ms in lives_ms.items():
        assert SECRET not in key
        if key.endswith(":m"):
            assert 90_000 < life_ms <= 100_000
        elif ":{s" in key:
            assert 190_000 < life_ms <= 200_000
        else:
            assert life_ms > 0


async def test_everything_expires(server: Server, open_store: OpenStore) -> None:
    """When nobody touches a state any more, nothing of it remains."""
    store = await open_store(ttl_s=0.2, lease_s=0.2)
    await store.park(make_state("t/a", os.urandom(2_000_000)))
    await store.aclose()
    async with asyncio.timeout(10):
        while keys_in(server):
            await asyncio.sleep(0)


async def test_chunks_are_a_mebibyte(server: Server, open_store: OpenStore) -> None:
    """A payload lies in values of 1 MiB, the last of what is left."""
    store = await open_store()
    await store.park(make_state("t/a", bytes(2 * CHUNK_BYTES + 5)))
    lengths = sorted(number(server.ask("STRLEN", key)) for key in chunks_in(server))
    assert lengths == [5, CHUNK_BYTES, CHUNK_BYTES]


async def test_equal_segments_are_stored_and_sent_once(
    server: Server, open_store: OpenStore
) -> None:
    """Another session of the tenant with the same rows costs a manifest."""
    store, payload = await open_store(), os.urandom(3_000_000)
    await store.park(make_state("t/a", payload))
    before_bytes, chunks = written_bytes(server), chunks_in(server)
    await store.park(make_state("t/b", payload))
    assert written_bytes(server) - before_bytes < 10_000
    assert chunks_in(server) == chunks
    assert (await store.stat()).stored_bytes == 3_000_000
    await store.drop("t/a")
    assert (await store.fetch("t/b"))[0] == make_state("t/b", payload)
    await store.park(make_state("u/b", payload))
    assert len(chunks_in(server)) == 2 * len(chunks)


async def test_only_new_rows_travel(server: Server, open_store: OpenStore) -> None:
    """A continuation sends at most 1.02 of its own rows, whoever parked the rest."""
    one = await open_store()
    base, rest = large_rows(0, 1624), large_rows(1624, 2224)
    await one.park(base)
    await one.aclose()
    other = await open_store("other")
    before_bytes = written_bytes(server)
    await other.park(rest)
    sent_bytes = written_bytes(server) - before_bytes
    assert sent_bytes <= 1.02 * rest.manifest.length_bytes
    assert (await other.fetch("t/a"))[0] == rest.behind(base)


async def test_a_truncated_chunk_is_written_again(
    server: Server, open_store: OpenStore
) -> None:
    """What is shorter than it should be is not taken for stored."""
    store, state = await open_store(), make_state("t/a", os.urandom(1000))
    await store.park(state)
    (chunk,) = chunks_in(server)
    server.ask("SET", chunk, "short", "KEEPTTL")
    await store.park(state)
    assert (await store.fetch("t/a"))[0] == state


@pytest.mark.parametrize("damage", ["short", "x" * 1000, "x" * 2000])
async def test_a_damaged_chunk_is_never_given_out(
    server: Server, open_store: OpenStore, damage: str
) -> None:
    """Shorter, longer or other bytes: corrupt, counted, and all of it removed."""
    store = await open_store()
    await store.park(make_state("t/a", os.urandom(1000)))
    await store.park(make_state("t/b", b"unharmed"))
    (chunk,) = [c for c in chunks_in(server) if number(server.ask("STRLEN", c)) == 1000]
    server.ask("SET", chunk, damage, "KEEPTTL")
    with pytest.raises(StateCorrupt, match="'t/a'"):
        await store.fetch("t/a")
    with pytest.raises(StateMissing):
        await store.fetch("t/a")
    assert (await store.stat()).refused == {"corrupt": 1}
    await store.fetch("t/b")
    await store.drop("t/b")
    assert keys_in(server) == []


async def test_an_evicted_chunk_is_a_missing_state(
    server: Server, open_store: OpenStore
) -> None:
    """One chunk gone: missing, counted, and the rest removed."""
    store = await open_store()
    await store.park(make_state("t/a", os.urandom(3_000_000)))
    server.ask("DEL", chunks_in(server)[0])
    with pytest.raises(StateMissing, match="lacks a chunk"):
        await store.fetch("t/a")
    assert (await store.stat()).refused == {"chunk_missing": 1}
    assert keys_in(server) == []


async def test_a_damaged_manifest_is_never_believed(
    server: Server, open_store: OpenStore
) -> None:
    """A manifest that can't be read is corrupt; then there is no state."""
    one = await open_store()
    await one.park(make_state("t/a"))
    await one.aclose()
    (manifest,) = [key for key in keys_in(server) if key.endswith(":m")]
    server.ask("HSET", manifest, "d", "rubbish")
    other = await open_store("other")
    with pytest.raises(StateCorrupt):
        await other.fetch("t/a")
    with pytest.raises(StateMissing):
        await other.find("t/a")


async def test_fetching_gives_time_again(server: Server, open_store: OpenStore) -> None:
    """All of a state that is fetched is kept for its full time anew."""
    one = await open_store(ttl_s=100)
    await one.park(make_state("t/a"))
    await one.aclose()
    for key in keys_in(server):
        server.ask("PEXPIRE", key, "5000")
    other = await open_store("other", ttl_s=100)
    await other.fetch("t/a")
    # The segments follow in the background; dropping waits for that.
    await other.park(make_rows("t/a", [9]))
    lives_ms = [number(server.ask("PTTL", key)) for key in keys_in(server)]
    assert min(lives_ms) > 50_000


async def test_a_sweep_removes_what_a_dead_process_left(
    server: Server, open_store: OpenStore
) -> None:
    """Segments whose session has neither state nor lease go; others stay."""
    one = await open_store()
    await one.park(make_state("t/alive", b"alive"))
    for index in range(100):
        await one.park(make_state(f"t/{index}", b"%d" % index))
    await one.aclose()
    alive = Layout("kvalet", PlainSealer()).session("t/alive").all
    for key in keys_in(server):
        if ":{m" in key and key not in alive:
            server.ask("DEL", key)
    other = await open_store("other")
    for _ in range(20):
        await other.sweep(limit=20)
    assert len(chunks_in(server)) == 1
    assert (await other.fetch("t/alive"))[0] == make_state("t/alive", b"alive")


async def test_a_cancelled_park_leaves_nothing(
    server: Server, open_store: OpenStore
) -> None:
    """Cancelled at any step, a park of a new session leaves no key behind."""
    store = await open_store()
    for steps in range(0, 60, 3):
        task = asyncio.create_task(
            store.park(make_state("t/a", os.urandom(20_000_000)))
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.drop("t/a")
        assert keys_in(server) == []


async def test_prefixes_keep_stores_apart(server: Server) -> None:
    """Two prefixes in one server are two stores; a prefix has to be a plain word."""
    stores = [await RedisStore.open(server.url, prefix=prefix) for prefix in ("a", "b")]
    await stores[0].park(make_state("t/a"))
    with pytest.raises(StateMissing):
        await stores[1].fetch("t/a")
    for store in stores:
        await store.aclose()
    with pytest.raises(StoreUnusable, match=r"'a\{b'"):
        await RedisStore.open(server.url, prefix="a{b")
