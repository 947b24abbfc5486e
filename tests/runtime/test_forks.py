"""Forks, subagents, two requests in flight: who begins from what, and what is left."""

import asyncio
import math
from collections.abc import Awaitable

import anyio
import pytest

from kvalet.runtime.client import Session
from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.errors import SessionBusy, SessionEnded, WrongInput
from kvalet.runtime.turn import Reply
from kvalet.scheduler import (
    CopyForgotten,
    IllegalMove,
    PrefillDone,
    PrefillStarted,
    Residency,
    RestoreFailed,
    RestoreStarted,
    SessionClosed,
    SessionOpened,
    TurnAborted,
    TurnSubmitted,
)
from kvalet.state_store import KVState, MemoryStore

from .backends import RoundBackend, Scribe, Stream
from .world import CancelAt, World, ask, open_world, use_tool, virtual

# A session that was asked 100 tokens has said 105 of which 104 have a state: 1.04 s to
# copy it out, 0.52 s to copy it back. 10 tokens more are a prefill of 0.11 s behind it
# (the last sampled token is computed with them) and one of 1.15 s without it.


def fork(world: World, session: Session, id: str | None = None) -> Session:
    """Fork a session that the world closes at its end."""
    child = session.fork(id)
    world.opened.append(child)
    return child


async def asked(world: World, id: str = "a") -> Session:
    """Return a session that has said 105 tokens."""
    session = world.session(id)
    await ask(session, 100)
    return session


# ---- what a fork begins from ---------------------------------------------------------


@virtual
async def test_a_fork_is_restored_from_its_parents_copy() -> None:
    """Its first turn reuses 104 tokens, 0.52 s after it came, and proves it."""
    async with open_world("park") as world:
        session = await asked(world)
        async with session.tool("Task"):
            await anyio.sleep(10)
            child = fork(world, session, "b")
            assert child.context_tokens == 105
            reply = await ask(child, 10)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (115, 104)
        assert reply.usage.ttft_s == pytest.approx(0.52 + 0.11)
        [restore] = world.heard(RestoreStarted)
        assert (restore.session, restore.source) == ("b", "a")
        assert [done.verified for done in world.heard(PrefillDone, "b")] == [True]
        assert (child.context_tokens, session.context_tokens) == (120, 105)


@virtual
async def test_a_fork_made_while_its_parent_is_parked() -> None:
    """It waits for the only slot: 1.04 s of copying out, then begins from the copy."""
    async with open_world("park") as world:
        session = await asked(world)
        async with session.tool("Task"):
            reply = await ask(fork(world, session), 10)
        assert reply.usage.reused_tokens == 104
        assert reply.usage.ttft_s == pytest.approx(1.04 + 0.52 + 0.11)


@virtual
async def test_a_fork_that_need_not_wait_computes() -> None:
    """On a free slot it is let in at once; nothing is in the store by then."""
    async with open_world("park", backend=RoundBackend(slots=2)) as world:
        session = await asked(world)
        async with session.tool("Task"):
            reply = await ask(fork(world, session), 10)
        assert reply.usage.reused_tokens == 0
        assert reply.usage.ttft_s == pytest.approx(1.15)


@virtual
async def test_a_fork_of_what_was_never_copied_computes() -> None:
    """Under keep there is no copy, and the prompt is what it should be all the same."""
    async with open_world("keep", backend=RoundBackend(slots=2)) as world:
        session = await asked(world)
        reply = await ask(fork(world, session), 10)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (115, 0)


@virtual
async def test_the_parents_copy_survives_its_forks() -> None:
    """Two forks come and go; the parent is restored from what it has parked once."""
    async with open_world("park") as world:
        session = await asked(world)
        async with session.tool("Task"):
            await anyio.sleep(10)
            for name in "bc":
                async with session.fork(name) as child:
                    assert (await ask(child, 10)).usage.reused_tokens == 104
            await anyio.sleep(10)
            assert world.heard(CopyForgotten) == []
            assert await world.stored_bytes() == 1040
        reply = await ask(session, 10)
        assert reply.usage.reused_tokens == 104
        assert reply.usage.ttft_s == pytest.approx(0.52 + 0.11)


@virtual
async def test_a_fork_has_a_copy_of_its_own_in_the_end() -> None:
    """It is parked under its own key, all of it, and comes back from there."""
    async with open_world("park", backend=RoundBackend(exports_rows=True)) as world:
        session = await asked(world)
        async with session.tool("Task"):
            child = fork(world, session, "b")
            await ask(child, 10)
            await use_tool(child, 10)
            assert await world.stored_bytes() == 1040 + 1190
            assert (await ask(child, 10)).usage.reused_tokens == 119
        sources = [event.source for event in world.heard(RestoreStarted, "b")]
        assert sources == ["a", None]


@virtual
async def test_a_fork_of_a_fork() -> None:
    """One that has run is begun from, one that has not passes on what it was lent."""
    async with open_world("park") as world:
        session = await asked(world)
        async with session.tool("Task"):
            await anyio.sleep(10)
            child = fork(world, session, "b")
            grandchild = fork(world, child, "c")
            assert (await ask(grandchild, 10)).usage.reused_tokens == 104
            await ask(child, 10)
            async with child.tool("Task"):
                await anyio.sleep(10)
                last = fork(world, child, "d")
                reply = await ask(last, 10)
            assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (130, 119)
        restores = world.heard(RestoreStarted)
        assert [(event.session, event.source) for event in restores] == [
            ("c", "a"),
            ("b", "a"),
            ("d", "b"),
        ]


@virtual
async def test_a_fork_that_keeps_only_a_part() -> None:
    """The copy is restored for the 40 tokens of it that lead the fork's prompt."""
    async with open_world("park") as world:
        session = await asked(world)
        async with session.tool("Task"):
            await anyio.sleep(10)
            child = fork(world, session)
            reply = await child.turn([2] * 20, max_tokens=5, keep_tokens=40)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (60, 40)


# ---- a copy that is not what it was --------------------------------------------------


@virtual
async def test_a_parent_that_went_on() -> None:
    """Its copy is longer now than what both share: the fork computes, and is right."""
    async with open_world("park") as world:
        session = await asked(world)
        await use_tool(session, 10)
        child = fork(world, session, "b")
        await ask(session, 50)
        await use_tool(session, 10)
        reply = await ask(child, 10)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (115, 0)
        assert world.heard(RestoreStarted, "b") == []


@virtual
async def test_a_parent_whose_history_was_edited() -> None:
    """A shorter copy of other tokens is refused by their hash, and computed again."""
    async with open_world("park") as world:
        session = await asked(world)
        await use_tool(session, 10)
        child = fork(world, session, "b")
        await session.turn([7] * 20, max_tokens=5, keep_tokens=10)
        await use_tool(session, 10)
        reply = await ask(child, 10)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (115, 0)
        [failed] = world.heard(RestoreFailed)
        assert failed.session == "b"
        assert "of other tokens" in failed.reason


@virtual
async def test_a_copy_that_the_store_has_lost() -> None:
    """Who tries first finds out; it costs each of them time, and none an answer."""
    async with open_world("park") as world:
        session = await asked(world)
        async with session.tool("Task"):
            await anyio.sleep(10)
            await world.store.drop("a")
            reply = await ask(fork(world, session, "b"), 10)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (115, 0)
        assert (await ask(session, 10)).usage.prompt_tokens == 115
        assert [event.session for event in world.heard(RestoreFailed)] == ["b", "a"]


@virtual
async def test_a_copy_that_is_another_one_by_now() -> None:
    """Somebody has parked other tokens under the parent's key: never used."""
    async with open_world("park") as world:
        session = await asked(world)
        async with session.tool("Task"):
            await anyio.sleep(10)
            other = KVState.seal(
                key="a",
                model="simulated",
                engine="simulated",
                layout="none",
                token_ids=[9] * 104,
                payload=b"",
            )
            await world.store.park(other)
            reply = await ask(fork(world, session), 10)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (115, 0)
        assert len(world.heard(RestoreFailed)) == 1


@virtual
async def test_a_copy_that_others_have_pushed_out() -> None:
    """The store has room for one: the fork of who was evicted computes at once."""
    async with open_world("park", store=MemoryStore(1500)) as world:
        session, other = await asked(world), world.session("other")
        async with session.tool("Task"):
            await anyio.sleep(10)
            child = fork(world, session, "b")
            await ask(other, 100)
            await use_tool(other, 10)
            assert (await ask(child, 10)).usage.reused_tokens == 0
        assert world.heard(RestoreStarted) == []


@virtual
async def test_a_parent_that_ends_first() -> None:
    """Its copy goes with it, and its fork goes on without."""
    async with open_world("park") as world:
        session = await asked(world)
        await use_tool(session, 10)
        child = fork(world, session)
        await session.aclose()
        await world.rest()
        assert await world.stored_bytes() == 0
        reply = await ask(child, 10)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (115, 0)


@virtual
async def test_a_parent_that_ends_while_its_fork_is_restored() -> None:
    """What is on its way is of the right tokens, whether or not it still exists."""
    async with open_world("park") as world:
        session = await asked(world)
        await use_tool(session, 10)
        child = fork(world, session)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, child, 10)
            await anyio.sleep(0.1)
            assert world.residency(child.id) is Residency.RESTORING
            await session.aclose()
        assert child.context_tokens == 120


# ---- subagents -----------------------------------------------------------------------


@virtual
async def test_a_parent_joins_its_subagents_by_the_end_of_its_tools() -> None:
    """Two forks work on the parent's only slot; it comes back when both have ended."""
    async with open_world("park") as world:
        session = await asked(world)

        async def delegate(name: str) -> None:
            async with session.tool("Task"), session.fork(name) as child:
                await ask(child, 10)

        parent = world.lane("a")
        async with anyio.create_task_group() as tasks:
            for name in "bc":
                tasks.start_soon(delegate, name)
            await anyio.sleep(2)
            assert (parent.live_children, parent.awaits_child) == (2, True)
            assert parent.residency is Residency.PARKED
        assert (parent.live_children, parent.awaits_child) == (0, False)
        reply = await ask(session, 10)
        assert reply.usage.reused_tokens == 104
        ends = [event.at_s for event in world.heard(SessionClosed)]
        assert world.heard(PrefillStarted, "a")[-1].at_s >= max(ends)


@virtual
async def test_a_subagent_beside_its_parent_blocks_nothing() -> None:
    """It is a child, and no tool call waits for it."""
    async with open_world("keep") as world:
        session = world.session("a")
        async with (
            world.runtime.session("b", parent="a", blocking=False),
            session.tool("Bash"),
        ):
            parent = world.lane("a")
            assert (parent.live_children, parent.awaits_child) == (1, False)


@virtual
async def test_a_fork_is_of_its_parents_tenant() -> None:
    """Tenant, weight and priority are passed on, and said when it is opened."""
    async with open_world() as world:
        session = world.runtime.session("a", tenant="t", weight=2.0, priority=3)
        world.opened.append(session)
        fork(world, session)
        first, second = world.heard(SessionOpened)
        for opened in (first, second):
            assert (opened.tenant, opened.weight, opened.priority) == ("t", 2.0, 3)
        assert (second.session, second.parent) == ("a+1", "a")


@virtual
async def test_names_of_forks() -> None:
    """One is given or made from the parent's, and never one that is taken."""
    async with open_world() as world:
        session = world.session("a")
        world.session("a+1")
        assert fork(world, session).id == "a+2"
        with pytest.raises(IllegalMove, match=r"'a\+1' is open already"):
            session.fork("a+1")
        await session.aclose()
        with pytest.raises(SessionEnded, match="'a' is closed"):
            session.fork()


# ---- two requests in flight ----------------------------------------------------------


async def both(
    session: Session, first: int, second: int, after_s: float = 0.5
) -> tuple[Reply, Reply]:
    """Ask twice, the second time while the first is in progress."""
    one = asyncio.create_task(ask(session, first))
    await anyio.sleep(after_s)
    other = asyncio.create_task(ask(session, second))
    return await one, await other


@virtual
async def test_two_requests_in_flight_are_both_answered() -> None:
    """Each is asked of the conversation as it was; the first one is what follows."""
    async with open_world("keep", backend=RoundBackend(slots=2)) as world:
        session = await asked(world)
        first, second = await both(session, 100, 20)
        assert first.usage.prompt_tokens == 205
        assert second.usage.prompt_tokens == 125
        assert session.context_tokens == 210
        [opened] = world.heard(SessionOpened)[1:]
        assert (opened.session, opened.parent, opened.blocking) == ("a+1", "a", False)
        assert [event.session for event in world.heard(SessionClosed)] == ["a+1"]
        assert (await ask(session, 10)).usage.reused_tokens == 209


@virtual
async def test_side_by_side_on_two_slots() -> None:
    """100 tokens of prompt take 1 s; 20 that come at 0.5 s wait for that and 0.2 s."""
    async with open_world("keep", backend=RoundBackend(slots=2)) as world:
        first, second = await both(world.session("a"), 100, 20)
        assert first.usage.ttft_s == pytest.approx(1.0)
        assert second.usage.ttft_s == pytest.approx(0.5 + 0.2)


@virtual
async def test_the_second_begins_from_the_firsts_copy() -> None:
    """Parked, then asked twice at once: both are restored from the same copy."""
    async with open_world("park", backend=RoundBackend(slots=2)) as world:
        session = await asked(world)
        await use_tool(session, 10)
        first, second = await both(session, 10, 20, after_s=0.1)
        assert (first.usage.reused_tokens, second.usage.reused_tokens) == (104, 104)
        sources = [event.source for event in world.heard(RestoreStarted)]
        assert sources == [None, "a"]


@virtual
async def test_a_second_chat_has_its_own_messages() -> None:
    """Its message list is its prompt, and the first one's is the conversation."""
    async with open_world("keep", backend=Scribe(slots=2)) as world:
        session = world.session("a")
        one, other = (
            session.chat([{"role": "user", "content": content}], max_tokens=5)
            for content in ("first", "the second")
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_finish, one)
            tasks.start_soon(_finish, other)
        assert session.context_tokens == len("user:first\n") + 5
        prompts = [event.prompt_tokens for event in world.heard(TurnSubmitted)]
        assert prompts == [len("user:first\n"), len("user:the second\n")]


async def _finish(turn: Awaitable[object]) -> None:
    await turn


@virtual
async def test_the_first_may_end_last() -> None:
    """A short answer overtakes a long one; the conversation is the long one's."""
    async with open_world("keep", backend=RoundBackend(slots=2)) as world:
        session = world.session("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, session, 10, 100)
            await anyio.sleep(0.2)
            await ask(session, 5, 1)
            assert session.context_tokens == 0
            assert len(world.heard(SessionClosed)) == 1
        assert session.context_tokens == 110


@virtual
async def test_a_third_follows_the_first() -> None:
    """Once the first has ended, the conversation goes on, whoever is still beside."""
    async with open_world("keep", backend=RoundBackend(slots=3)) as world:
        session = world.session("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, session, 10)
            await anyio.sleep(0.05)
            tasks.start_soon(ask, session, 20, 100)
            await anyio.sleep(2)
            assert session.context_tokens == 15
            assert (await ask(session, 10)).usage.prompt_tokens == 25
            with pytest.raises(SessionBusy, match="'a' has a turn in progress"):
                await session.aclose()
        assert session.context_tokens == 30


@virtual
async def test_the_first_is_cancelled() -> None:
    """The second's answer comes, the conversation is as before."""
    async with open_world("keep", backend=RoundBackend(slots=2)) as world:
        session = await asked(world)
        one = asyncio.create_task(ask(session, 100))
        await anyio.sleep(0.5)
        other = asyncio.create_task(ask(session, 20))
        await anyio.sleep(0.1)
        one.cancel()
        assert (await other).usage.prompt_tokens == 125
        assert session.context_tokens == 105
        assert [event.session for event in world.heard(TurnAborted)] == ["a"]


async def _cancel_the_second_at(suspension: int | None) -> tuple[int, bool]:
    """Cancel it at a suspension; return how many there were and whether it ended."""
    async with open_world("park", backend=Stream()) as world:
        session = await asked(world)
        await use_tool(session, 10)
        one = asyncio.create_task(ask(session, 100))
        await anyio.sleep(0.1)
        second = CancelAt(ask(session, 20), suspension)
        other = asyncio.ensure_future(_finish(second))
        await asyncio.wait([one, other])
        assert (await one).usage.prompt_tokens == 205
        assert session.context_tokens == 210
        assert [event.session for event in world.heard(SessionClosed)] == ["a+1"]
        await world.rest()
        assert world.runtime.scheduler.sessions == 1
        return second.suspensions, not other.cancelled()


def test_the_second_is_cancelled_at_every_suspension() -> None:
    """Its fork is closed wherever it was, and the first one never notices."""
    suspensions, finished = run_in_virtual_time(_cancel_the_second_at(None))
    assert finished and suspensions >= 4
    for suspension in range(1, suspensions + 1):
        _, finished = run_in_virtual_time(_cancel_the_second_at(suspension))
        assert not finished


@virtual
async def test_a_second_that_nobody_reads_to_its_end() -> None:
    """Leaving its block early closes its fork."""
    async with open_world("keep", backend=Stream(slots=2)) as world:
        session = world.session("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, session, 10)
            await anyio.sleep(0.05)
            async with session.turn([1] * 20, max_tokens=9) as stream:
                async for _ in stream:
                    break
            assert [event.session for event in world.heard(SessionClosed)] == ["a+1"]
        assert session.context_tokens == 15


@virtual
async def test_a_fork_during_a_turn_is_of_what_was_before() -> None:
    """Neither the prompt in progress nor its answer is part of it."""
    async with open_world("keep", backend=RoundBackend(slots=2)) as world:
        session = await asked(world)
        turn = asyncio.create_task(ask(session, 100))
        await anyio.sleep(0.5)
        child = fork(world, session)
        assert child.context_tokens == 105
        await turn
        assert (await ask(child, 10)).usage.prompt_tokens == 115


# ---- deadlines -----------------------------------------------------------------------


@virtual
async def test_a_turn_with_a_deadline_goes_first() -> None:
    """Once that is close, it overtakes who came before it."""
    async with open_world("drop") as world:
        sessions = [world.session(name) for name in "abc"]
        async with anyio.create_task_group() as tasks:
            for session in sessions[:2]:
                tasks.start_soon(ask, session, 100)
                await anyio.sleep(0.1)
            turn = sessions[2].turn([1] * 10, max_tokens=1, deadline_s=1)
            tasks.start_soon(_finish, turn)
        done = [event.session for event in world.heard(PrefillDone)]
        assert done == ["a", "c", "b"]
        assert [event.deadline_s for event in world.heard(TurnSubmitted)] == [
            None,
            None,
            pytest.approx(1.2),
        ]


@pytest.mark.parametrize("deadline_s", [-1, 0, math.nan, math.inf])
@virtual
async def test_a_deadline_that_makes_no_sense(deadline_s: float) -> None:
    """It is refused with a sentence before anything is submitted."""
    async with open_world() as world:
        session = world.session("a")
        sentence = f"deadline_s must be positive and finite, not {deadline_s}"
        with pytest.raises(WrongInput, match=sentence):
            session.turn([1], deadline_s=deadline_s)
        with pytest.raises(WrongInput, match=sentence):
            session.chat([], deadline_s=deadline_s)
        assert world.heard(TurnSubmitted) == []
