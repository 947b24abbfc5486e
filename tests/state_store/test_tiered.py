"""A store of two tiers: when it waits, what it keeps, and what it says is lost."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio
import pytest

from kvalet.state_store import (
    Inventory,
    KVState,
    MemoryStore,
    StateCorrupt,
    StateLeased,
    StateMissing,
    StoreFull,
    StoreUnavailable,
)
from kvalet.state_store.flaky import FlakyStore
from kvalet.state_store.tiered import TieredStore
from tests.runtime.world import virtual

from .talk import Listener, Talk, keys_of

AWAY = StoreUnavailable("the far tier is away")


@dataclass
class Stack:
    """The store, its tiers, and who listens to it."""

    store: TieredStore
    host: MemoryStore
    far: FlakyStore
    far_inside: MemoryStore
    owner: Listener

    async def host_keys(self) -> list[str]:
        """Return what is in the first tier."""
        return await keys_of(self.host)

    async def far_keys(self) -> list[str]:
        """Return what is in the last tier."""
        return await keys_of(self.far_inside)


@asynccontextmanager
async def open_stack(
    host_bytes: int | None = None,
    far_bytes: int | None = None,
    *,
    write_through: bool = False,
    queue_bytes: int = 1000,
) -> AsyncGenerator[Stack]:
    """Yield a host tier over a far one; see at the end that nothing is left."""
    host, inside, owner = MemoryStore(host_bytes), MemoryStore(far_bytes), Listener()
    far = FlakyStore(inside)
    store = TieredStore(
        [host, far], write_through=write_through, queue_bytes=queue_bytes
    )
    store.serve(owner)
    yield Stack(store, host, far, inside, owner)
    far.heal()
    for key in await keys_of(store):
        await store.drop(key)
    await anyio.sleep(60)
    for tier in (host, inside, store):
        stat = await tier.stat()
        assert (stat.states, stat.stored_bytes) == (0, 0)
    await store.aclose()


async def is_missing(store: Inventory, key: str) -> bool:
    """Return whether a fetch says so."""
    try:
        await store.fetch(key)
    except StateMissing:
        return True
    return False


def corrupted(state: KVState) -> KVState:
    """Return *state* with other bytes, under its old manifest."""
    return replace(state, payloads=tuple(bytes(len(p)) for p in state.payloads))


# ---- park ----------------------------------------------------------------------------


@virtual
async def test_a_park_does_not_wait_for_the_far_tier() -> None:
    """The state is in the first tier when park returns, and below soon after."""
    async with open_stack() as stack:
        stack.far.delay_s = 100
        talk = Talk("a", "hello")
        before_s = asyncio.get_running_loop().time()
        receipt = await stack.store.park(talk.whole)
        assert asyncio.get_running_loop().time() == before_s
        assert (receipt.tier, receipt.nbytes) == ("host", 5)
        assert await stack.far_keys() == []
        await anyio.sleep(101)
        assert await stack.far_keys() == ["a"]


@pytest.mark.parametrize("by_call", [False, True])
def test_a_write_through_park_waits_for_the_far_tier(by_call: bool) -> None:
    """It returns when the last tier has the state, and says so."""

    @virtual
    async def check() -> None:
        async with open_stack(write_through=not by_call) as stack:
            stack.far.delay_s = 100
            receipt = await stack.store.park(Talk("a", "hello").whole, through=by_call)
            assert receipt.tier == "far"
            assert await stack.far_keys() == ["a"]

    check()


@virtual
async def test_a_write_through_that_fails_keeps_the_host_copy() -> None:
    """The receipt names the tier that has it; it is written when the far one is back"""
    async with open_stack(write_through=True) as stack:
        stack.far.break_down(AWAY)
        receipt = await stack.store.park(Talk("a", "hello").whole)
        assert receipt.tier == "host"
        assert (await stack.store.stat()).refused == {"write-behind unavailable": 1}
        stack.far.heal()
        await anyio.sleep(10)
        assert await stack.far_keys() == ["a"]
        assert stack.owner.heard == []


@virtual
async def test_a_write_through_goes_before_what_nobody_waits_for() -> None:
    """It waits for one write that is under way at most."""
    async with open_stack() as stack:
        stack.far.delay_s = 10
        for key in "abcdef":
            await stack.store.park(Talk(key, key * 3).whole)
        await anyio.sleep(1)
        await stack.store.park(Talk("g", "ggg").whole, through=True)
        assert asyncio.get_running_loop().time() == 20


@virtual
async def test_only_new_rows_travel() -> None:
    """A tier that has the beginning gets the rest alone."""
    async with open_stack() as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole)
        await anyio.sleep(1)
        await stack.store.park(talk.say(" world"), through=True)
        assert stack.far.parked_bytes == len("hello world")
        assert (await stack.far_inside.fetch("a"))[0] == talk.whole


@virtual
async def test_a_whole_state_is_cut_for_a_tier_that_has_its_beginning() -> None:
    """Even if all rows were parked anew."""
    async with open_stack() as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole, through=True)
        talk.say(" world")
        await stack.store.park(talk.whole, through=True)
        assert stack.far.parked_bytes == len("hello world")
        assert (await stack.far_inside.fetch("a"))[0] == talk.whole


@virtual
async def test_a_tier_without_the_beginning_gets_the_whole() -> None:
    """The first tier still has all of it."""
    async with open_stack() as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole, through=True)
        await stack.far_inside.drop("a")
        await stack.store.park(talk.say(" world"), through=True)
        assert (await stack.far_inside.fetch("a"))[0] == talk.whole


@virtual
async def test_turns_that_wait_are_written_as_one() -> None:
    """What is queued for a key is its newest state, with all rows that lack below."""
    async with open_stack() as stack:
        stack.far.break_down(AWAY)
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole)
        await stack.store.park(talk.say(" wide"))
        await stack.store.park(talk.say(" world"))
        stack.far.heal()
        await anyio.sleep(10)
        assert (await stack.far_inside.fetch("a"))[0] == talk.whole


@virtual
async def test_a_write_that_fails_unseen_is_not_repeated() -> None:
    """If the far tier did the work before it failed, the rows do not travel again."""
    async with open_stack() as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole, through=True)
        stack.far.break_down(AWAY, times=1, acts_first=True)
        await stack.store.park(talk.say(" world"))
        await anyio.sleep(10)
        assert (await stack.far_inside.fetch("a"))[0] == talk.whole
        assert stack.far.parked_bytes == len("hello world")


@virtual
async def test_what_the_first_tier_cannot_take_goes_to_the_next() -> None:
    """At once, and what the first had of it before is let go."""
    async with open_stack(host_bytes=8) as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole)
        receipt = await stack.store.park(talk.say(" world"))
        assert receipt == replace(receipt, tier="far", nbytes=6, evicted=())
        assert (await stack.store.fetch("a"))[0] == talk.whole
        await anyio.sleep(1)
        assert await stack.host_keys() == []


@virtual
async def test_a_state_that_no_tier_takes_changes_nothing() -> None:
    """The first tier's error is raised, and the older state is as it was."""
    async with open_stack(host_bytes=8, far_bytes=8) as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole, through=True)
        before = talk.whole
        with pytest.raises(StoreFull):
            await stack.store.park(talk.say(" world"))
        assert (await stack.store.fetch("a"))[0] == before
        assert await stack.host_keys() == await stack.far_keys() == ["a"]


@virtual
async def test_rows_follow_their_beginning_to_the_far_tier() -> None:
    """Rows whose beginning has left the first tier are added where it is."""
    async with open_stack(host_bytes=8) as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole, through=True)
        await stack.store.park(Talk("b", "8 tokens").whole)
        receipt = await stack.store.park(talk.say("!"))
        assert (receipt.tier, stack.far.parked_bytes) == ("far", 5 + 8 + 1)
        assert (await stack.store.fetch("a"))[0] == talk.whole


@virtual
async def test_rows_that_continue_nothing_are_refused() -> None:
    """StateMissing, and what the key holds stays."""
    async with open_stack() as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole)
        held = talk.whole
        talk.say(" wide")
        with pytest.raises(StateMissing, match="before token 10 of state 'a'"):
            await stack.store.park(talk.say(" world"))
        with pytest.raises(StateMissing):
            await stack.store.park(Talk("b", "x", "y").rest)
        assert (await stack.store.fetch("a"))[0] == held


# ---- fetch ---------------------------------------------------------------------------


@virtual
async def test_what_came_from_below_is_promoted() -> None:
    """The receipt names the tier it came from; the next time that is the first."""
    async with open_stack() as stack:
        talk = Talk("a", "hello")
        await stack.far_inside.park(talk.whole)
        state, receipt = await stack.store.fetch("a")
        assert (state, receipt.tier) == (talk.whole, "far")
        await anyio.sleep(0.1)
        state, receipt = await stack.store.fetch("a")
        assert (state, receipt.tier) == (talk.whole, "host")


@virtual
async def test_a_promotion_that_displaces_is_told() -> None:
    """Whoever had to leave and is nowhere else is lost."""
    async with open_stack(host_bytes=8, queue_bytes=0) as stack:
        await stack.far_inside.park(Talk("a", "hello").whole)
        stack.far.break_down(StateLeased("'b' is another's"), times=1)
        await stack.store.park(Talk("b", "hallo").whole)
        await anyio.sleep(1)
        await stack.store.fetch("a")
        await anyio.sleep(1)
        assert await stack.host_keys() == ["a"]
        assert stack.owner.heard == ["b"]


@virtual
async def test_a_corrupt_copy_falls_through() -> None:
    """The next tier's copy is returned, and the bad one is replaced by it."""
    async with open_stack() as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole, through=True)
        await stack.host.drop("a")
        await stack.host.park(corrupted(talk.whole))
        state, receipt = await stack.store.fetch("a")
        assert (state, receipt.tier) == (talk.whole, "far")
        await anyio.sleep(0.1)
        assert (await stack.host.fetch("a"))[0] == talk.whole
        assert (await stack.store.stat()).refused == {"corrupt": 1}


@virtual
async def test_corrupt_everywhere_is_corrupt_then_missing() -> None:
    """Nothing wrong is ever returned, and the owner hears of it by the error alone."""
    async with open_stack() as stack:
        await stack.store.park(corrupted(Talk("a", "hello").whole), through=True)
        with pytest.raises(StateCorrupt):
            await stack.store.fetch("a")
        assert await is_missing(stack.store, "a")
        assert stack.owner.heard == []


@virtual
async def test_corrupt_bytes_do_not_wait_in_the_queue() -> None:
    """They are not returned, and not written either."""
    async with open_stack() as stack:
        stack.far.hang()
        await stack.store.park(corrupted(Talk("a", "hello").whole))
        with anyio.move_on_after(1):
            await stack.store.fetch("a")
        stack.far.heal()
        with pytest.raises((StateCorrupt, StateMissing)):
            await stack.store.fetch("a")
        assert await is_missing(stack.store, "a")
        assert await stack.far_keys() == []


@virtual
async def test_a_far_tier_that_is_away_is_not_a_loss() -> None:
    """StoreUnavailable, not StateMissing; later the state is there again."""
    async with open_stack(host_bytes=8) as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole, through=True)
        await stack.store.park(Talk("b", "8 tokens").whole)
        stack.far.break_down(AWAY)
        with pytest.raises(StoreUnavailable):
            await stack.store.fetch("a")
        with pytest.raises(StoreUnavailable):
            await stack.store.find("a")
        stack.far.heal()
        assert (await stack.store.fetch("a"))[0] == talk.whole
        assert stack.owner.heard == []


@virtual
async def test_an_older_state_below_is_never_returned() -> None:
    """What the far tier has of before the last park does not come back."""
    async with open_stack(host_bytes=20, queue_bytes=0) as stack:
        await stack.store.park(Talk("a", "old").whole, through=True)
        stack.far.break_down(AWAY)
        await stack.store.park(Talk("a", "new").whole)
        await stack.store.park(Talk("b", "x" * 19).whole)
        stack.far.heal()
        assert await is_missing(stack.store, "a")
        await anyio.sleep(10)
        assert await stack.far_keys() == ["b"]
        assert stack.owner.heard == []


@virtual
async def test_find_and_keys_see_all_tiers() -> None:
    """The newest manifest is found wherever it is; every key is named once."""
    async with open_stack(host_bytes=8) as stack:
        talks = [Talk(key, "8 tokens") for key in "ab"]
        for talk in talks:
            await stack.store.park(talk.whole, through=True)
        await stack.far_inside.park(Talk("c", "8 tokens").whole)
        assert sorted(await keys_of(stack.store)) == ["a", "b", "c"]
        for talk in talks:
            assert await stack.store.find(talk.key) == talk.whole.manifest


# ---- losses --------------------------------------------------------------------------


@virtual
async def test_what_a_lower_tier_has_is_not_lost() -> None:
    """Leaving the first tier is no loss then, and no eviction of the store."""
    async with open_stack(host_bytes=8) as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole, through=True)
        receipt = await stack.store.park(Talk("b", "8 tokens").whole)
        stat = await stack.store.stat()
        assert (receipt.evicted, stat.evictions, stat.states) == ((), 0, 2)
        assert stat.tiers[0].evictions == 1
        assert (await stack.store.fetch("a"))[0] == talk.whole


@virtual
async def test_what_is_queued_is_not_lost() -> None:
    """A state that is displaced before it was written is kept by the queue."""
    async with open_stack(host_bytes=8) as stack:
        stack.far.break_down(AWAY)
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole)
        receipt = await stack.store.park(Talk("b", "8 tokens").whole)
        assert receipt.evicted == ()
        assert sorted(await keys_of(stack.store)) == ["a", "b"]
        assert await stack.store.find("a") == talk.whole.manifest
        state, receipt = await stack.store.fetch("a")
        assert (state, receipt.tier) == (talk.whole, "host")
        stack.far.heal()
        await anyio.sleep(10)
        assert sorted(await stack.far_keys()) == ["a", "b"]


@virtual
async def test_queued_rows_are_fetched_with_what_is_below() -> None:
    """If only new rows wait, they are written first and the far tier answers."""
    async with open_stack(host_bytes=11) as stack:
        talk = Talk("a", "hello")
        await stack.store.park(talk.whole, through=True)
        stack.far.delay_s = 10
        await stack.store.park(talk.say(" world"))
        await stack.store.park(Talk("b", "11 tokens..").whole)
        state, receipt = await stack.store.fetch("a")
        assert (state, receipt.tier) == (talk.whole, "far")


@virtual
async def test_the_queue_is_bounded() -> None:
    """Beyond its bytes it keeps nothing alive by itself: who leaves is lost, once."""
    async with open_stack(host_bytes=8, queue_bytes=8) as stack:
        stack.far.break_down(AWAY)
        receipts = [
            await stack.store.park(Talk(key, f"tokens {key}").whole) for key in "abcd"
        ]
        evicted = [receipt.evicted for receipt in receipts]
        assert evicted + [(key,) for key in stack.owner.heard] != []
        told = [key for keys in evicted for key in keys] + stack.owner.heard
        assert sorted(told) == ["b", "c"]
        stack.far.heal()
        await anyio.sleep(10)
        assert sorted(await stack.far_keys()) == ["a", "d"]


@virtual
async def test_what_the_host_holds_outlives_a_full_queue() -> None:
    """A state that let go of its place in the queue's bytes is read from the host."""
    async with open_stack(queue_bytes=8) as stack:
        stack.far.break_down(AWAY)
        for key in "abcd":
            await stack.store.park(Talk(key, f"tokens {key}").whole)
        stack.far.heal()
        await anyio.sleep(10)
        assert sorted(await stack.far_keys()) == ["a", "b", "c", "d"]
        assert stack.owner.heard == []


@virtual
async def test_a_refused_state_is_kept_and_not_retried() -> None:
    """A session that another process owns stays where it is, until it is displaced."""
    async with open_stack(host_bytes=8) as stack:
        stack.far.break_down(StateLeased("it is another's"), times=1)
        await stack.store.park(Talk("a", "hello").whole)
        await anyio.sleep(100)
        assert stack.far.calls == [("park", "a")]
        assert (await stack.store.stat()).refused == {"write-behind leased": 1}
        assert (await stack.store.fetch("a"))[1].tier == "host"
        receipt = await stack.store.park(Talk("b", "8 tokens").whole)
        await anyio.sleep(1)
        assert [*receipt.evicted, *stack.owner.heard] == ["a"]


@virtual
async def test_the_far_tier_is_given_up_after_a_while() -> None:
    """A tier that says it is there and fails each time is not tried for ever."""
    async with open_stack() as stack:
        stack.far.break_down(AWAY, times=10**6)
        await stack.store.park(Talk("a", "hello").whole)
        await anyio.sleep(1000)
        assert len(stack.far.calls) == 8
        assert (await stack.store.fetch("a"))[1].tier == "host"


@virtual
async def test_a_loss_in_the_far_tier_is_told_if_it_had_the_last_copy() -> None:
    """And not if it hadn't."""
    async with open_stack(host_bytes=8, far_bytes=16) as stack:
        for key in "abcd":
            await stack.store.park(Talk(key, f"tokens {key}").whole, through=True)
        assert stack.owner.heard == ["a", "b"]
        assert sorted(await keys_of(stack.store)) == ["c", "d"]
        assert await is_missing(stack.store, "a")


@virtual
async def test_worth_decides_in_every_tier() -> None:
    """The owner's word reaches the tiers."""
    async with open_stack(host_bytes=16, far_bytes=16) as stack:
        stack.owner.worths_s = {"a": 2.0, "b": 1.0, "c": 3.0}
        for key in "abc":
            await stack.store.park(Talk(key, f"tokens {key}").whole, through=True)
        assert await stack.host_keys() == await stack.far_keys() == ["a", "c"]
        assert stack.owner.heard == ["b"]


@virtual
async def test_a_state_of_an_earlier_process_is_looked_for_below() -> None:
    """What is displaced is not lost if a tier has it that nobody has asked yet."""
    async with open_stack(host_bytes=8) as stack:
        talk = Talk("a", "hello")
        await stack.host.park(talk.whole)
        await stack.far_inside.park(talk.whole)
        assert (await stack.store.fetch("a"))[1].tier == "host"
        await stack.store.park(Talk("b", "8 tokens").whole)
        assert (await stack.store.fetch("a"))[1].tier == "far"
        assert stack.owner.heard == []


@virtual
async def test_who_is_found_nowhere_is_lost() -> None:
    """A state of an earlier process that only the first tier had is told."""
    async with open_stack(host_bytes=8) as stack:
        await stack.host.park(Talk("a", "hello").whole)
        await stack.far_inside.park(Talk("a", "older").whole)
        assert (await stack.store.fetch("a"))[1].tier == "host"
        await stack.store.park(Talk("b", "8 tokens").whole)
        await anyio.sleep(1)
        assert stack.owner.heard == ["a"]
        assert await is_missing(stack.store, "a")
        assert await stack.far_keys() == ["b"]


@virtual
async def test_a_state_that_another_process_parked_is_returned() -> None:
    """What is in a shared tier counts, not what this process wrote there."""
    async with open_stack(host_bytes=8) as stack:
        await stack.store.park(Talk("a", "ours").whole, through=True)
        await stack.store.park(Talk("b", "8 tokens").whole)
        theirs = Talk("a", "theirs").whole
        await stack.far_inside.park(theirs)
        assert (await stack.store.fetch("a"))[0] == theirs
        await anyio.sleep(1)
        assert (await stack.store.fetch("a"))[0] == theirs


@virtual
async def test_the_owner_hears_where_a_state_is_now() -> None:
    """Leaving the first tier for the one below is a move, and so is coming back."""
    async with open_stack(host_bytes=8) as stack:
        await stack.store.park(Talk("a", "hello").whole, through=True)
        assert stack.owner.moves == []
        await stack.store.park(Talk("b", "8 tokens").whole, through=True)
        assert stack.owner.moves == [("a", "far")]
        await stack.store.fetch("a")
        await anyio.sleep(1)
        assert stack.owner.moves[1:] == [("b", "far"), ("a", "host")]
        assert stack.owner.heard == []


# ---- drop, cancellation, close -------------------------------------------------------


@virtual
async def test_a_drop_stops_a_write_that_is_under_way() -> None:
    """It does not wait for it, and the key does not come back."""
    async with open_stack() as stack:
        stack.far.delay_s = 10
        await stack.store.park(Talk("a", "hello").whole)
        await anyio.sleep(1)
        await stack.store.drop("a")
        await anyio.sleep(100)
        assert await stack.host_keys() == await stack.far_keys() == []
        assert await is_missing(stack.store, "a")
        assert stack.owner.heard == []


@virtual
async def test_a_drop_while_the_far_tier_is_away_holds() -> None:
    """The key is missing at once, and dropped below when that tier is back."""
    async with open_stack() as stack:
        await stack.store.park(Talk("a", "hello").whole, through=True)
        stack.far.break_down(AWAY)
        await stack.store.drop("a")
        assert await is_missing(stack.store, "a")
        assert await keys_of(stack.store) == []
        stack.far.heal()
        await anyio.sleep(10)
        assert await stack.far_keys() == []


@virtual
async def test_a_park_after_a_drop_stays() -> None:
    """A drop that is yet to be done below does not take the new state along."""
    async with open_stack() as stack:
        await stack.store.park(Talk("a", "hello").whole, through=True)
        stack.far.break_down(AWAY)
        await stack.store.drop("a")
        talk = Talk("a", "again")
        await stack.store.park(talk.whole)
        stack.far.heal()
        await anyio.sleep(10)
        assert (await stack.far_inside.fetch("a"))[0] == talk.whole
        assert (await stack.host.fetch("a"))[0] == talk.whole


@virtual
async def test_a_newer_state_supersedes_a_queued_one() -> None:
    """The older one is not written any more."""
    async with open_stack() as stack:
        stack.far.delay_s = 10
        await stack.store.park(Talk("first", "x").whole)
        await stack.store.park(Talk("a", "old").whole)
        await stack.store.park(Talk("a", "new").whole)
        await anyio.sleep(100)
        assert stack.far.calls.count(("park", "a")) == 1
        assert (await stack.far_inside.fetch("a"))[0] == Talk("a", "new").whole


@virtual
async def test_a_cancelled_park_is_finished() -> None:
    """The state is parked all the same, and who it displaced for good is told."""
    async with open_stack(host_bytes=8, queue_bytes=0) as stack:
        stack.far.break_down(AWAY)
        await stack.store.park(Talk("a", "hello").whole)
        talk = Talk("b", "8 tokens")
        parking = asyncio.create_task(stack.store.park(talk.whole))
        await asyncio.sleep(0)
        parking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await parking
        await anyio.sleep(1)
        assert (await stack.store.fetch("b"))[0] == talk.whole
        assert stack.owner.heard == ["a"]


@virtual
async def test_a_cancelled_write_through_goes_on() -> None:
    """Who stops waiting for the far tier has the state there in the end."""
    async with open_stack() as stack:
        stack.far.hang()
        with anyio.move_on_after(5) as scope:
            await stack.store.park(Talk("a", "hello").whole, through=True)
        assert scope.cancelled_caught
        stack.far.heal()
        await anyio.sleep(1)
        assert await stack.far_keys() == ["a"]


@virtual
async def test_closing_writes_what_is_queued() -> None:
    """A clean end loses nothing that the far tier can take."""
    host, inside = MemoryStore(None), MemoryStore(None)
    far = FlakyStore(inside)
    far.delay_s = 1
    store = TieredStore([host, far])
    for key in "abc":
        await store.park(Talk(key, "hello").whole)
    await store.aclose()
    assert far.calls == [("park", "a"), ("park", "b"), ("park", "c")]
    assert (await host.stat()).states == (await inside.stat()).states == 0


@virtual
async def test_closing_is_bounded() -> None:
    """A far tier that hangs or is away holds nobody up for longer than agreed."""
    for hangs, took_s in ((True, 5.0), (False, 0.0)):
        far = FlakyStore(MemoryStore(None))
        far.hang() if hangs else far.break_down(AWAY)
        store = TieredStore([MemoryStore(None), far], flush_s=5.0)
        await store.park(Talk("a", "hello").whole)
        before_s = asyncio.get_running_loop().time()
        await store.aclose()
        assert asyncio.get_running_loop().time() - before_s == took_s
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.park(Talk("a", "hello").whole)


@virtual
async def test_each_tier_below_is_written_by_itself() -> None:
    """A slow one does not hold up another."""
    stores = [MemoryStore(None) for _ in range(3)]
    near, far = FlakyStore(stores[1], tier="near"), FlakyStore(stores[2])
    near.hang()
    store = TieredStore([stores[0], near, far])
    receipt = await store.park(Talk("a", "hello").whole, through=True)
    assert receipt.tier == "far"
    assert (await stores[2].fetch("a"))[0] == Talk("a", "hello").whole
    near.heal()
    await store.aclose()
    assert [call for call, _ in near.calls] == ["park"]


@virtual
async def test_one_tier_is_that_tier() -> None:
    """A store of a single tier says of losses what that says."""
    store = TieredStore([MemoryStore(8)])
    await store.park(Talk("a", "hello").whole, through=True)
    receipt = await store.park(Talk("b", "8 tokens").whole)
    assert (receipt.tier, receipt.evicted) == ("host", ("a",))
    assert await is_missing(store, "a")
    await store.aclose()
