"""What every state store promises, run on each of them.

A new store joins with one line in ``STORES`` of ``tests/state_store/harness.py``, and
is put through random histories (``tests/state_store/test_machine.py``) as well.
"""

import asyncio
import os
from dataclasses import replace

import pytest

from kvalet.state_store import (
    BLOCK_TOKENS,
    Inventory,
    KVState,
    Manifest,
    StateCorrupt,
    StateMissing,
    StoreFull,
)
from tests.state_store.harness import STORES, Harness, Kind, Limits
from tests.state_store.states import copy_of, corrupted, make_rows, make_state

pytestmark = pytest.mark.asyncio

# A budget is of at least eight of these: less is no budget for a folder.
UNIT = 128 * 1024


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return one kind of store."""
    return STORES[request.param]


@pytest.fixture(params=[name for name, kind in STORES.items() if kind.has_budget])
def budgeted(request: pytest.FixtureRequest) -> Kind:
    """Return one kind of store that keeps byte budgets."""
    return STORES[request.param]


class Appraiser:
    """An owner that knows what each state is worth, and writes down what is lost."""

    def __init__(self, **worths_s: float) -> None:
        self.worths_s = worths_s
        self.lost_keys: list[str] = []

    def lost(self, key: str) -> None:
        self.lost_keys.append(key)

    def moved(self, key: str, tier: str) -> None:
        pass

    def worth_s(self, manifest: Manifest) -> float:
        return self.worths_s[manifest.key]


def make_units(key: str, units: int) -> KVState:
    """Return a state that carries a few bytes, and takes so many units."""
    return make_state(key, key.encode(), kv_bytes=units * UNIT)


async def keys_of(store: Inventory) -> set[str]:
    """Return the keys of all states."""
    keys = store.keys()
    return {key async for key in keys}


async def is_missing(store: Inventory, key: str) -> bool:
    """Return whether nothing is parked there, by every way to ask."""
    with pytest.raises(StateMissing):
        await store.find(key)
    with pytest.raises(StateMissing):
        await store.fetch(key)
    return key not in await keys_of(store)


# One state.


async def test_fetch_returns_what_was_parked(kind: Kind) -> None:
    """A parked state comes back equal, with its size on both receipts."""
    async with kind.open(Limits()) as harness:
        state = make_state("a", b"x" * 1_000_000)
        parked = await harness.store.park(state)
        fetched, receipt = await harness.store.fetch("a")
        assert fetched == state
        assert parked.nbytes == receipt.nbytes == 1_000_000
        assert parked.tier and parked.evicted == receipt.evicted == ()


async def test_fetch_leaves_the_state(kind: Kind) -> None:
    """Fetching takes nothing out."""
    async with kind.open(Limits()) as harness:
        await harness.store.park(make_state("a"))
        assert await harness.store.fetch("a") == await harness.store.fetch("a")


async def test_fetch_of_an_unknown_key_is_missing(kind: Kind) -> None:
    """A key that was never parked raises StateMissing, naming it."""
    async with kind.open(Limits()) as harness:
        with pytest.raises(StateMissing, match="'nobody'"):
            await harness.store.fetch("nobody")
        assert await is_missing(harness.store, "nobody")


async def test_park_replaces(kind: Kind) -> None:
    """There is one state per key, the last one parked, counted once."""
    async with kind.open(Limits()) as harness:
        await harness.store.park(make_state("a", b"old, longer"))
        await harness.store.park(make_state("a", b"new"))
        fetched, _ = await harness.store.fetch("a")
        stat = await harness.store.stat()
        assert fetched.payloads == (b"new",)
        assert (stat.states, stat.stored_bytes) == (1, 3)


async def test_a_state_without_bytes(kind: Kind) -> None:
    """A state may carry nothing."""
    async with kind.open(Limits()) as harness:
        state = make_state("a", b"")
        await harness.store.park(state)
        assert (await harness.store.fetch("a"))[0] == state


async def test_a_large_state_in_many_segments(kind: Kind) -> None:
    """Sizes of real states, in segments of different lengths, some of them equal."""
    payloads = [os.urandom(size) for size in (3_000_000, 1, 1 << 20, (1 << 20) + 1)]
    payloads += [payloads[0], b"", b""]
    state = KVState.seal_segments(
        key="a",
        model="m",
        engine="e",
        layout="l",
        head=b"\x00head",
        token_ids=range(8),
        ends=range(1, 8),
        payloads=payloads,
    )
    async with kind.open(Limits()) as harness:
        await harness.store.park(state)
        assert (await harness.store.fetch("a"))[0] == state


@pytest.mark.parametrize("key", ["", "/", "ä/☃", "a" * 1000, "t/../../x", "t/\0", "*"])
async def test_any_text_is_a_key(kind: Kind, key: str) -> None:
    """A key is only a text, wherever it ends up."""
    async with kind.open(Limits()) as harness:
        await harness.store.park(make_state(key))
        assert (await harness.store.find(key)).key == key
        assert await keys_of(harness.store) == {key}
        await harness.store.drop(key)
        assert await is_missing(harness.store, key)


async def test_find_tells_what_is_there(kind: Kind) -> None:
    """The manifest of a state, without its bytes."""
    async with kind.open(Limits()) as harness:
        state = make_rows("a", [1] * 200, unstored_bytes=5)
        await harness.store.park(state)
        assert await harness.store.find("a") == state.manifest


async def test_keys_are_those_of_all_states(kind: Kind) -> None:
    """Every parked key, and no other."""
    async with kind.open(Limits()) as harness:
        for key in ("t/a", "t/b", "u/a", "loose"):
            await harness.store.park(make_state(key))
        await harness.store.drop("t/b")
        assert await keys_of(harness.store) == {"t/a", "u/a", "loose"}


async def test_drop_forgets(kind: Kind) -> None:
    """A dropped key is missing and its bytes are free, wherever they were."""
    async with kind.open(Limits()) as harness:
        await harness.store.park(make_state("a"))
        await harness.store.drop("a")
        assert await is_missing(harness.store, "a")
        assert (await harness.store.stat()).stored_bytes == 0
        assert await harness.leftovers() == []


async def test_drop_of_an_unknown_key_is_no_error(kind: Kind) -> None:
    """Dropping twice, or what never was, changes nothing."""
    async with kind.open(Limits()) as harness:
        await harness.store.drop("nobody")
        assert (await harness.store.stat()).states == 0


async def test_states_survive_or_do_not(kind: Kind) -> None:
    """After a restart everything is there, or nothing."""
    async with kind.open(Limits()) as harness:
        states = [make_rows(key, [3] * 300) for key in ("t/a", "t/b", "u/a")]
        for state in states:
            await harness.store.park(state)
        await harness.reopen()
        if kind.survives:
            for state in states:
                assert (await harness.store.fetch(state.manifest.key))[0] == state
        else:
            assert await keys_of(harness.store) == set()


# A state that grows.


async def test_the_rest_is_put_behind_what_is_there(kind: Kind) -> None:
    """Only new rows travel; what comes back is the whole, with the latest head."""
    text = list(range(700))
    async with kind.open(Limits()) as harness:
        await harness.store.park(whole := make_rows("a", text[:300]))
        for start, end in ((300, 301), (301, 512), (512, 700)):
            rest = make_rows("a", text[:end], start)
            receipt = await harness.store.park(rest)
            whole = rest.behind(whole)
            assert receipt.nbytes == rest.manifest.kv_bytes
            assert (await harness.store.fetch("a"))[0] == whole
        assert (await harness.store.stat()).stored_bytes == whole.manifest.kv_bytes


async def test_a_rest_without_its_beginning_is_missing(kind: Kind) -> None:
    """Nothing is parked where nothing can be appended to."""
    async with kind.open(Limits()) as harness:
        with pytest.raises(StateMissing, match="'a'"):
            await harness.store.park(make_rows("a", [1] * 200, 100))
        assert await is_missing(harness.store, "a")
        assert (await harness.store.stat()).stored_bytes == 0
        assert await harness.leftovers() == []


@pytest.mark.parametrize(
    "rest",
    [
        make_rows("a", [1] * 200, 99),
        make_rows("a", [1] * 200, 101),
        make_rows("a", [2] * 200, 100),
        make_rows("a", [1] * 200, 100, model="another"),
    ],
    ids=["gap", "overlap", "other tokens", "other model"],
)
async def test_a_wrong_rest_changes_nothing(kind: Kind, rest: KVState) -> None:
    """A rest of something else raises StateMissing and leaves what is there."""
    async with kind.open(Limits()) as harness:
        state = make_rows("a", [1] * 100)
        await harness.store.park(state)
        with pytest.raises(StateMissing):
            await harness.store.park(rest)
        assert (await harness.store.fetch("a"))[0] == state
        assert (await harness.store.stat()).stored_bytes == state.manifest.kv_bytes


# States that are alike.


async def test_equal_segments_of_a_tenant_are_stored_once(kind: Kind) -> None:
    """Sessions that begin alike share the segments of their beginning."""
    beginning = [1] * BLOCK_TOKENS + [2] * BLOCK_TOKENS
    async with kind.open(Limits()) as harness:
        one = make_rows("t/a", [*beginning, 3])
        two = make_rows("t/b", [*beginning, 4, 5])
        await harness.store.park(one)
        await harness.store.park(two)
        stat = await harness.store.stat()
        tail = two.manifest.segments[-1].length_bytes
        if kind.has_budget:
            assert stat.stored_bytes == one.manifest.length_bytes + tail
        await harness.store.drop("t/a")
        assert (await harness.store.fetch("t/b"))[0] == two
        await harness.store.drop("t/b")
        assert (await harness.store.stat()).stored_bytes == 0
        assert await harness.leftovers() == []


async def test_tenants_share_nothing(budgeted: Kind) -> None:
    """Equal segments of two tenants are two."""
    async with budgeted.open(Limits()) as harness:
        for key in ("t/a", "u/a", "a"):
            state = make_rows(key, [1] * BLOCK_TOKENS)
            await harness.store.park(state)
        stat = await harness.store.stat()
        assert stat.stored_bytes == 3 * state.manifest.length_bytes


async def test_a_state_shares_with_itself(budgeted: Kind) -> None:
    """Equal segments of one state are stored once, and come back in every place."""
    async with budgeted.open(Limits()) as harness:
        state = make_rows("a", [1] * 3 * BLOCK_TOKENS)
        await harness.store.park(state)
        stat = await harness.store.stat()
        assert stat.stored_bytes == state.manifest.length_bytes // 3
        assert (await harness.store.fetch("a"))[0] == state


async def test_replacing_keeps_what_both_have(kind: Kind) -> None:
    """A state may be replaced by one that shares its segments."""
    async with kind.open(Limits()) as harness:
        await harness.store.park(make_rows("a", [1] * 300))
        state = make_rows("a", [1] * 256 + [2] * 100)
        await harness.store.park(state)
        assert (await harness.store.fetch("a"))[0] == state


# States that are wrong.


async def test_corruption_is_never_returned(kind: Kind) -> None:
    """A state that differs from its manifest raises StateCorrupt, then is gone."""
    async with kind.open(Limits()) as harness:
        await harness.store.park(corrupted(make_state("a")))
        with pytest.raises(StateCorrupt, match="'a'"):
            await harness.store.fetch("a")
        assert await is_missing(harness.store, "a")
        stat = await harness.store.stat()
        assert (stat.states, stat.stored_bytes) == (0, 0)
        assert stat.refused.keys() == {"corrupt"}
        assert 1 <= stat.refused["corrupt"] <= max(1, len(stat.tiers))
        assert await harness.leftovers() == []


async def test_corruption_of_a_large_state_is_found(kind: Kind) -> None:
    """Verification is the same however large the payload is."""
    async with kind.open(Limits()) as harness:
        await harness.store.park(corrupted(make_state("a", b"x" * 1_000_000)))
        with pytest.raises(StateCorrupt):
            await harness.store.fetch("a")


@pytest.mark.parametrize("segment", [0, 1, 2])
async def test_a_bit_that_flips_in_the_store_is_found(kind: Kind, segment: int) -> None:
    """Whichever segment it is in; and the state can be parked anew."""
    async with kind.open(Limits()) as harness:
        state = make_rows("a", [*range(300)])
        expected = copy_of(state)
        await harness.store.park(state)
        await harness.corrupt("a", segment)
        with pytest.raises(StateCorrupt):
            await harness.store.fetch("a")
        assert await is_missing(harness.store, "a")
        await harness.store.park(expected)
        assert (await harness.store.fetch("a"))[0] == expected


async def test_wrong_bytes_are_not_shared_any_more(kind: Kind) -> None:
    """Once they are found, they are no state's, and the owner knows whose they were."""
    async with kind.open(Limits()) as harness:
        appraiser = Appraiser()
        harness.store.serve(appraiser)
        text = [1] * BLOCK_TOKENS
        states = [make_rows(key, [*text, ord(key[-1])]) for key in ("t/a", "t/b")]
        expected = copy_of(states[0])
        for state in (*states, make_rows("u/c", text)):
            await harness.store.park(state)
        await harness.corrupt("t/b", 0)
        with pytest.raises(StateCorrupt):
            await harness.store.fetch("t/a")
        await harness.store.park(expected)
        assert (await harness.store.fetch("t/a"))[0] == expected
        assert await keys_of(harness.store) >= {"t/a", "u/c"}
        gone = {"t/a", "t/b", "u/c"} - await keys_of(harness.store)
        assert set(appraiser.lost_keys) == gone
        if gone:
            assert await is_missing(harness.store, "t/b")


# Budgets.


async def test_the_budget_is_never_exceeded(budgeted: Kind) -> None:
    """Parking beyond the budget displaces others and names them."""
    async with budgeted.open(Limits(budget_bytes=10 * UNIT)) as harness:
        receipts = [await harness.store.park(make_units(key, 5)) for key in "abc"]
        stat = await harness.store.stat()
        assert [receipt.evicted for receipt in receipts] == [(), (), ("a",)]
        assert (stat.states, stat.stored_bytes, stat.evictions) == (2, 10 * UNIT, 1)
        assert stat.budget_bytes == 10 * UNIT
        assert await is_missing(harness.store, "a")


async def test_a_fetch_makes_recent(budgeted: Kind) -> None:
    """Who was used longest ago leaves first, if nobody says what states are worth."""
    async with budgeted.open(Limits(budget_bytes=10 * UNIT)) as harness:
        for key in "ab":
            await harness.store.park(make_units(key, 5))
        await harness.store.fetch("a")
        assert (await harness.store.park(make_units("c", 5))).evicted == ("b",)


async def test_a_state_beyond_the_budget_displaces_nothing(budgeted: Kind) -> None:
    """StoreFull leaves everything as it was, the same key's old state included."""
    async with budgeted.open(Limits(budget_bytes=10 * UNIT)) as harness:
        state = make_units("a", 5)
        await harness.store.park(state)
        with pytest.raises(StoreFull, match=f"'a' has {11 * UNIT:,} bytes"):
            await harness.store.park(make_units("a", 11))
        assert (await harness.store.fetch("a"))[0] == state
        stat = await harness.store.stat()
        assert (stat.states, stat.evictions, stat.refused) == (1, 0, {"full": 1})


async def test_a_rest_beyond_the_budget_displaces_nothing(budgeted: Kind) -> None:
    """What counts is the whole that it would become."""
    async with budgeted.open(Limits(budget_bytes=10 * UNIT)) as harness:
        state = make_rows("a", [1] * 100, unstored_bytes=6 * UNIT)
        await harness.store.park(state)
        with pytest.raises(StoreFull):
            await harness.store.park(
                make_rows("a", [1] * 200, 100, unstored_bytes=6 * UNIT)
            )
        assert (await harness.store.fetch("a"))[0] == state


async def test_a_state_does_not_displace_its_own_key(budgeted: Kind) -> None:
    """Replacing a state counts its old bytes as free and is no eviction."""
    async with budgeted.open(Limits(budget_bytes=10 * UNIT)) as harness:
        await harness.store.park(make_units("a", 5))
        await harness.store.park(make_units("b", 5))
        receipt = await harness.store.park(make_units("a", 4))
        assert receipt.evicted == ()
        assert (await harness.store.stat()).states == 2


async def test_simulated_bytes_count(budgeted: Kind) -> None:
    """What counts is the manifest's kv_bytes, payload or not."""
    async with budgeted.open(Limits(budget_bytes=10 * UNIT)) as harness:
        await harness.store.park(make_state("a", b"", kv_bytes=6 * UNIT))
        receipt = await harness.store.park(make_state("b", b"", kv_bytes=6 * UNIT))
        assert receipt == replace(receipt, nbytes=6 * UNIT, evicted=("a",))
        assert (await harness.store.stat()).stored_bytes == 6 * UNIT


async def test_real_bytes_count(budgeted: Kind) -> None:
    """Bytes that are carried count as well, each segment once."""
    async with budgeted.open(Limits(budget_bytes=10 * UNIT)) as harness:
        payloads = [os.urandom(4 * UNIT) for _ in range(3)]
        for key, payload in zip("abc", [*payloads[:2], payloads[0]], strict=True):
            receipt = await harness.store.park(make_state(key, payload))
            assert receipt.evicted == ()
        receipt = await harness.store.park(make_state("d", payloads[2]))
        assert receipt.evicted == ("a", "b")


async def test_a_tenants_budget_is_its_own(budgeted: Kind) -> None:
    """A tenant beyond its budget displaces its own states, recent or not."""
    limits = Limits(budget_bytes=20 * UNIT, tenant_budget_bytes=10 * UNIT)
    async with budgeted.open(limits) as harness:
        for key in ("u/a", "t/a", "u/b", "t/b"):
            assert (await harness.store.park(make_units(key, 5))).evicted == ()
        assert (await harness.store.park(make_units("t/c", 6))).evicted == (
            "t/a",
            "t/b",
        )
        with pytest.raises(StoreFull, match="of tenant 't'"):
            await harness.store.park(make_units("t/d", 11))
        assert await keys_of(harness.store) == {"u/a", "u/b", "t/c"}


async def test_tenants_may_have_different_budgets(budgeted: Kind) -> None:
    """Whoever isn't named has no limit but the store's."""
    limits = Limits(tenant_budget_bytes={"t": 5 * UNIT})
    async with budgeted.open(limits) as harness:
        for key in ("t/a", "t/b", "u/a", "u/b"):
            await harness.store.park(make_units(key, 5))
        assert await keys_of(harness.store) == {"t/b", "u/a", "u/b"}


async def test_who_is_worth_least_per_byte_leaves_first(budgeted: Kind) -> None:
    """The owner says what states are worth, and hears from receipts who left."""
    async with budgeted.open(Limits(budget_bytes=10 * UNIT)) as harness:
        appraiser = Appraiser(a=4.0, b=5.0, c=0.1, d=9.0)
        harness.store.serve(appraiser)
        for key, units in (("a", 4), ("b", 6)):
            await harness.store.park(make_units(key, units))
        assert (await harness.store.park(make_units("c", 1))).evicted == ("b",)
        assert (await harness.store.park(make_units("d", 6))).evicted == ("c",)
        assert appraiser.lost_keys == []


# Calls that overlap, and calls that are given up.


async def test_calls_for_different_keys_overlap(kind: Kind) -> None:
    """Many at once, of states that are alike: each key has its own in the end."""
    async with kind.open(Limits()) as harness:
        states = [
            make_rows(f"t/{number}", [number % 3] * 300 + [number])
            for number in range(24)
        ]
        await asyncio.gather(*(harness.store.park(state) for state in states))
        fetched = await asyncio.gather(
            *(harness.store.fetch(state.manifest.key) for state in states)
        )
        assert [state for state, _ in fetched] == states
        await asyncio.gather(*(harness.store.drop(f"t/{n}") for n in range(24)))
        assert (await harness.store.stat()).stored_bytes == 0
        assert await harness.leftovers() == []


async def test_calls_for_one_key_take_turns(kind: Kind) -> None:
    """Of parks at the same time, one is the last, and it is there wholly."""
    async with kind.open(Limits()) as harness:
        states = [make_rows("t/a", [number] * 300) for number in range(8)]
        await asyncio.gather(*(harness.store.park(state) for state in states))
        assert (await harness.store.fetch("t/a"))[0] in states
        assert (await harness.store.stat()).states == 1


async def test_a_drop_during_a_fetch_holds(kind: Kind) -> None:
    """What is dropped while it is fetched does not come back."""
    async with kind.open(Limits()) as harness:
        state = make_state("a", b"x" * 3_000_000)
        await harness.store.park(state)
        fetching = asyncio.create_task(harness.store.fetch("a"))
        await asyncio.sleep(0)
        await harness.store.drop("a")
        assert (await fetching)[0] == state
        assert await is_missing(harness.store, "a")


async def cancel_after(harness: Harness, state: KVState, steps: int) -> None:
    """Park, and cancel it after some steps of the loop."""
    parking = asyncio.create_task(harness.store.park(state))
    for _ in range(steps):
        await asyncio.sleep(0)
    parking.cancel()
    await asyncio.gather(parking, return_exceptions=True)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 30, 200])
async def test_a_cancelled_park_did_all_or_nothing(kind: Kind, steps: int) -> None:
    """The key holds the old state or the new one, and no bytes of the other."""
    async with kind.open(Limits()) as harness:
        old, new = make_rows("a", [1, 2] * 500), make_rows("a", [3, 4] * 500)
        await harness.store.park(old)
        await cancel_after(harness, new, steps)
        fetched, _ = await harness.store.fetch("a")
        assert fetched in (old, new)
        stat = await harness.store.stat()
        assert (stat.states, stat.refused) == (1, {})
        await harness.store.drop("a")
        assert (await harness.store.stat()).stored_bytes == 0
        assert await harness.leftovers() == []


@pytest.mark.parametrize("steps", [1, 3, 10, 100])
async def test_a_cancelled_rest_did_all_or_nothing(kind: Kind, steps: int) -> None:
    """The key holds what it held, or that and the rest."""
    async with kind.open(Limits()) as harness:
        base = make_rows("a", [1] * 200)
        rest = make_rows("a", [1] * 200 + [2] * 900, 200)
        await harness.store.park(base)
        await cancel_after(harness, rest, steps)
        assert (await harness.store.fetch("a"))[0] in (base, rest.behind(base))


async def test_a_cancelled_fetch_changes_nothing(kind: Kind) -> None:
    """The state is there, and the next fetch returns it."""
    async with kind.open(Limits()) as harness:
        state = make_state("a", b"x" * 3_000_000)
        await harness.store.park(state)
        fetching = asyncio.create_task(harness.store.fetch("a"))
        await asyncio.sleep(0)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        assert (await harness.store.fetch("a"))[0] == state
