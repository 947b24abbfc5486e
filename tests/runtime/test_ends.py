"""What outlives what: turns, tools, sessions and the runtime, in any order of ends."""

import asyncio
from contextlib import suppress

import anyio
import pytest

from kvalet.runtime.errors import KvaletError, SessionEnded, TurnRefused
from kvalet.runtime.runtime import Runtime
from kvalet.scheduler import Residency, TurnAborted
from tests.runtime.backends import RoundBackend, Scribe, SlowRelease, Stream
from tests.runtime.world import ask, open_world, use_tool, virtual


@pytest.mark.parametrize("how", ["break", "raise", "cancel"])
@virtual
async def test_a_consumer_that_leaves_at_the_first_chunk(how: str) -> None:
    """The slot is free again: its line holds no place that nobody uses."""
    async with open_world("keep", backend=Stream()) as world:
        session = world.session("a")
        with suppress(ZeroDivisionError), anyio.move_on_after(1):
            async with session.turn([1] * 10, max_tokens=6) as stream:
                async for _ in stream:
                    if how == "break":
                        break
                    if how == "raise":
                        raise ZeroDivisionError
                    await anyio.sleep(100)
        assert (await ask(session)).usage.prompt_tokens == 10


@pytest.mark.parametrize("new", [5, 300])
@virtual
async def test_a_cancelled_compaction_leaves_the_conversation(new: int) -> None:
    """The history is what it was before the turn that would have shortened it."""
    async with open_world("keep") as world:
        session = world.session("a")
        await ask(session, 100)
        with anyio.move_on_after(0.04):
            await session.turn([2] * new, max_tokens=5, keep_tokens=10)
        assert session.context_tokens == 105
        reply = await ask(session, 10)
        assert reply.usage.prompt_tokens == 115
        assert world.backend.distinct_ids == [{0, 1}]


@virtual
async def test_a_cancelled_chat_leaves_the_conversation() -> None:
    """A turn behind a chat that was given up continues the conversation before it."""
    async with open_world("keep", backend=Scribe()) as world:
        session = world.session("a")
        await ask(session, 100)
        with anyio.move_on_after(0.01):
            await session.chat([{"role": "user", "content": "something else" * 20}])
        reply = await ask(session, 10)
        assert reply.usage.prompt_tokens == 115
        assert world.backend.distinct_ids == [{0, 1}]


@virtual
async def test_leaving_the_runtime_with_a_turn_behind_a_job() -> None:
    """A turn whose slot is just being emptied gets SessionEnded, too."""
    backend = SlowRelease()
    async with Runtime(backend, policy="keep") as runtime:
        a, b = runtime.session("a"), runtime.session("b")
        await ask(a, 10)
        task = asyncio.create_task(ask(b, 10))
        await anyio.sleep(0.5)
    _, pending = await asyncio.wait([task], timeout=100)
    assert not pending
    assert isinstance(task.exception(), SessionEnded)


@virtual
async def test_leaving_the_runtime_does_not_swallow_a_cancellation() -> None:
    """A tool that is cancelled after its runtime has gone ends as cancelled."""
    async with Runtime(RoundBackend(), policy="keep") as runtime:
        task = asyncio.create_task(use_tool(runtime.session("a"), 100))
        await anyio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@virtual
async def test_a_tool_may_outlive_its_session() -> None:
    """The end of a call whose session is closed is no error of the tool's."""
    async with open_world("keep") as world:
        session = world.session("a")
        async with session.tool("Bash"):
            await session.aclose()


@virtual
async def test_a_tool_that_starts_after_its_session() -> None:
    """SessionEnded, as for a turn, not the scheduler's own error."""
    async with open_world("keep") as world:
        session = world.session("a")
        await session.aclose()
        with pytest.raises(SessionEnded):
            await use_tool(session, 1)


@virtual
async def test_a_turn_is_asked_for_once() -> None:
    """Awaiting a turn twice is an error, not an answer that holds both."""
    async with open_world("keep") as world:
        turn = world.session("a").turn([1] * 5, max_tokens=3)
        await turn
        with pytest.raises(KvaletError):
            await turn


@virtual
async def test_errors_leave_the_runtime_as_they_are() -> None:
    """An exception of the caller's is not wrapped in a group by the block."""
    with pytest.raises(ZeroDivisionError):
        async with Runtime(RoundBackend()):
            raise ZeroDivisionError


@virtual
async def test_the_last_chunk_ends_the_turn() -> None:
    """A consumer that stops at the chunk with the finish reason has the whole turn."""
    async with open_world("keep", backend=Stream()) as world:
        session = world.session("a")
        async with session.turn([1] * 10, max_tokens=6) as stream:
            async for chunk in stream:
                if chunk.finish is not None:
                    break
        assert session.context_tokens == 16
        assert world.heard(TurnAborted) == []


@virtual
async def test_a_refused_edit_keeps_the_copy() -> None:
    """A turn that was never admitted costs nothing of what is parked."""
    async with open_world("park") as world:
        session = world.session("a")
        await ask(session, 100)
        async with session.tool("Bash"):
            await anyio.sleep(50)
            with pytest.raises(TurnRefused):
                await session.turn([2] * 990, max_tokens=5, keep_tokens=50)
        assert (await ask(session, 10)).usage.reused_tokens == 104


@virtual
async def test_a_queued_edit_that_is_cancelled_does_not_spoil_the_next_copy() -> None:
    """What the slot holds and what is copied out of it stay the same."""
    async with open_world("park", backend=RoundBackend(slots=2)) as world:
        a, b = world.session("a"), world.session("b")
        await ask(a, 100)
        task = asyncio.create_task(ask(b, 500))
        await asyncio.sleep(0)
        with anyio.move_on_after(0.5):
            await a.turn([2] * 10, max_tokens=5, keep_tokens=50)
        await task
        async with a.tool("Bash"):
            await anyio.sleep(50)
            assert world.residency("a") is Residency.PARKED
