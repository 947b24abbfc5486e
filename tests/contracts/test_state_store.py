"""What every state store promises, run on each of them.

A new store joins with one line in ``STORES``. Its factory takes a budget in bytes.
"""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

import pytest

from kvalet.state_store import (
    Inventory,
    KVState,
    MemoryStore,
    StateCorrupt,
    StateMissing,
    StoreFull,
)

pytestmark = pytest.mark.asyncio

Factory = Callable[[int | None], Inventory]
STORES: dict[str, Factory] = {"memory": MemoryStore}


@pytest.fixture(params=STORES)
def make_store(request: pytest.FixtureRequest) -> Factory:
    """Return the factory of one kind of store."""
    return STORES[request.param]


def make_state(
    key: str, payload: bytes = b"rows", kv_bytes: int | None = None
) -> KVState:
    """Return a state of three tokens."""
    return KVState.seal(
        key=key,
        model="model",
        engine="engine",
        layout="layout",
        token_ids=[1, 2, 3],
        payload=payload,
        kv_bytes=kv_bytes,
    )


def corrupted(state: KVState) -> KVState:
    """Return *state* with one bit flipped, under its old manifest."""
    first, *rest = state.payloads
    return replace(state, payloads=(bytes([first[0] ^ 1]) + first[1:], *rest))


async def test_fetch_returns_what_was_parked(make_store: Factory) -> None:
    """A parked state comes back equal, with its size on both receipts."""
    async with aclosing(make_store(None)) as store:
        state = make_state("a", b"x" * 1_000_000)
        parked = await store.park(state)
        fetched, receipt = await store.fetch("a")
        assert fetched == state
        assert parked.nbytes == receipt.nbytes == 1_000_000
        assert parked.tier and parked.evicted == receipt.evicted == ()


async def test_fetch_leaves_the_state(make_store: Factory) -> None:
    """Fetching takes nothing out."""
    async with aclosing(make_store(None)) as store:
        await store.park(make_state("a"))
        assert await store.fetch("a") == await store.fetch("a")


async def test_fetch_of_an_unknown_key_is_missing(make_store: Factory) -> None:
    """A key that was never parked raises StateMissing, naming it."""
    async with aclosing(make_store(None)) as store:
        with pytest.raises(StateMissing, match="'nobody'"):
            await store.fetch("nobody")


async def test_park_replaces(make_store: Factory) -> None:
    """There is one state per key, the last one parked, counted once."""
    async with aclosing(make_store(None)) as store:
        await store.park(make_state("a", b"old, longer"))
        await store.park(make_state("a", b"new"))
        fetched, _ = await store.fetch("a")
        stat = await store.stat()
        assert fetched.payloads == (b"new",)
        assert (stat.states, stat.stored_bytes) == (1, 3)


async def test_drop_forgets(make_store: Factory) -> None:
    """A dropped key is missing and its bytes are free."""
    async with aclosing(make_store(None)) as store:
        await store.park(make_state("a"))
        await store.drop("a")
        with pytest.raises(StateMissing):
            await store.fetch("a")
        assert (await store.stat()).stored_bytes == 0


async def test_drop_of_an_unknown_key_is_no_error(make_store: Factory) -> None:
    """Dropping twice, or what never was, changes nothing."""
    async with aclosing(make_store(None)) as store:
        await store.drop("nobody")
        assert (await store.stat()).states == 0


async def test_corruption_is_never_returned(make_store: Factory) -> None:
    """A state that differs from its manifest raises StateCorrupt, then is gone."""
    async with aclosing(make_store(None)) as store:
        await store.park(corrupted(make_state("a")))
        with pytest.raises(StateCorrupt, match="'a'"):
            await store.fetch("a")
        with pytest.raises(StateMissing):
            await store.fetch("a")


async def test_corruption_of_a_large_state_is_found(make_store: Factory) -> None:
    """Verification is the same however large the payload is."""
    async with aclosing(make_store(None)) as store:
        await store.park(corrupted(make_state("a", b"x" * 1_000_000)))
        with pytest.raises(StateCorrupt):
            await store.fetch("a")


async def test_the_budget_is_never_exceeded(make_store: Factory) -> None:
    """Parking beyond the budget displaces others and names them."""
    async with aclosing(make_store(10)) as store:
        receipts = [
            await store.park(make_state(key, b"four" + key.encode())) for key in "abc"
        ]
        stat = await store.stat()
        assert [receipt.evicted for receipt in receipts] == [(), (), ("a",)]
        assert (stat.states, stat.stored_bytes, stat.evictions) == (2, 10, 1)
        assert stat.budget_bytes == 10
        with pytest.raises(StateMissing):
            await store.fetch("a")


async def test_a_state_beyond_the_budget_displaces_nothing(make_store: Factory) -> None:
    """StoreFull leaves everything as it was, the same key's old state included."""
    async with aclosing(make_store(10)) as store:
        await store.park(make_state("a", b"five!"))
        with pytest.raises(StoreFull, match="'a' has 11 bytes"):
            await store.park(make_state("a", b"eleven byte"))
        fetched, _ = await store.fetch("a")
        stat = await store.stat()
        assert fetched.payloads == (b"five!",)
        assert (stat.states, stat.evictions) == (1, 0)


async def test_a_state_does_not_displace_its_own_key(make_store: Factory) -> None:
    """Replacing a state counts its old bytes as free and is no eviction."""
    async with aclosing(make_store(10)) as store:
        await store.park(make_state("a", b"five!"))
        await store.park(make_state("b", b"FOUR!"))
        receipt = await store.park(make_state("a", b"FIVE!"))
        assert receipt.evicted == ()
        assert (await store.stat()).states == 2


async def test_simulated_bytes_count(make_store: Factory) -> None:
    """What counts is the manifest's kv_bytes, payload or not."""
    async with aclosing(make_store(10)) as store:
        await store.park(make_state("a", b"", kv_bytes=6))
        receipt = await store.park(make_state("b", b"", kv_bytes=6))
        assert receipt == replace(receipt, nbytes=6, evicted=("a",))
        assert (await store.stat()).stored_bytes == 6
