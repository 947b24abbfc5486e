"""What host memory does beyond the contract: its order, and calls that overlap."""

import asyncio

import pytest

from kvalet.state_store import KVState, MemoryStore, StateMissing

pytestmark = pytest.mark.asyncio


def make_state(key: str, payload: bytes = b"") -> KVState:
    """Return a state of one token, of five bytes by default."""
    return KVState.seal(
        key=key,
        model="m",
        engine="e",
        layout="l",
        token_ids=[1],
        payload=payload or key.encode().ljust(5),
    )


async def test_the_least_recently_used_leaves_first() -> None:
    """A fetch makes a state recent."""
    store = MemoryStore(10)
    await store.park(make_state("a"))
    await store.park(make_state("b"))
    await store.fetch("a")
    assert (await store.park(make_state("c"))).evicted == ("b",)


async def test_parking_again_makes_recent() -> None:
    """A state that is parked anew goes to the end of the queue of victims."""
    store = MemoryStore(10)
    await store.park(make_state("a"))
    await store.park(make_state("b"))
    await store.park(make_state("a"))
    assert (await store.park(make_state("c"))).evicted == ("b",)


async def test_one_park_can_displace_several() -> None:
    """As many leave as it takes, oldest first."""
    store = MemoryStore(10)
    await store.park(make_state("a"))
    await store.park(make_state("b"))
    receipt = await store.park(make_state("c", b"ten bytes!"))
    assert receipt.evicted == ("a", "b")


async def test_no_budget_displaces_nothing() -> None:
    """Without a budget everything stays."""
    store = MemoryStore(None)
    for number in range(100):
        assert (await store.park(make_state(str(number)))).evicted == ()
    assert (await store.stat()).stored_bytes == 500


async def test_a_drop_during_a_fetch_holds() -> None:
    """What is dropped while it is verified does not come back."""
    store = MemoryStore(None)
    state = make_state("a", b"x" * 10_000_000)
    await store.park(state)
    fetching = asyncio.create_task(store.fetch("a"))
    await asyncio.sleep(0)
    await store.drop("a")
    assert (await fetching)[0] == state
    with pytest.raises(StateMissing):
        await store.fetch("a")


async def test_a_closed_store_holds_nothing() -> None:
    """Closing lets go of the memory."""
    store = MemoryStore(None)
    await store.park(make_state("a"))
    await store.aclose()
    assert (await store.stat()).stored_bytes == 0
