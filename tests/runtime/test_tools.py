"""Tool calls: what they tell, and what their waits do to KV state."""

import asyncio
import math
from contextlib import suppress

import anyio
import pytest

from kvalet.runtime.errors import WrongInput
from kvalet.scheduler import (
    CopyStarted,
    Phase,
    Released,
    Residency,
    RestoreStarted,
    ToolEnded,
    ToolStarted,
)

from .backends import RoundBackend
from .world import ask, open_world, use_tool, virtual


@virtual
async def test_a_tool_call_is_timed() -> None:
    """Start and end carry name, call, seconds and status on the runtime's clock."""
    async with open_world("keep") as world:
        session = world.session("a")
        await anyio.sleep(3)
        await use_tool(session, 2.5, "Grep")
        [started], [ended] = world.heard(ToolStarted), world.heard(ToolEnded)
        assert (started.at_s, started.tool, started.call) == (3, "Grep", "a/1")
        assert (ended.at_s, ended.tool, ended.call) == (5.5, "Grep", "a/1")
        assert (ended.seconds, ended.status) == (2.5, "ok")


@virtual
async def test_run_returns_what_the_tool_returns() -> None:
    """run() times an awaitable and passes its result on."""

    async def work() -> str:
        await anyio.sleep(2)
        return "done"

    async with open_world() as world:
        assert await world.session("a").tool("Bash").run(work()) == "done"
        assert [ended.seconds for ended in world.heard(ToolEnded)] == [2]


@pytest.mark.parametrize(
    ("error", "status"),
    [(TimeoutError, "timeout"), (ValueError, "error"), (KeyboardInterrupt, "error")],
)
@virtual
async def test_an_exception_gives_the_status(
    error: type[BaseException], status: str
) -> None:
    """What leaves the block is the status, and it does leave the block."""
    async with open_world() as world:
        with pytest.raises(error):
            async with world.session("a").tool("Bash"):
                raise error
        assert [ended.status for ended in world.heard(ToolEnded)] == [status]
        assert world.lane("a").phase is Phase.IDLE


@virtual
async def test_a_deadline_inside_the_block_is_a_timeout() -> None:
    """asyncio.timeout around the work turns into TimeoutError, hence timeout."""
    async with open_world() as world:
        with pytest.raises(TimeoutError):
            async with world.session("a").tool("Bash"), asyncio.timeout(2):
                await anyio.sleep(100)
        [ended] = world.heard(ToolEnded)
        assert (ended.status, ended.seconds) == ("timeout", 2)


@virtual
async def test_a_cancelled_tool() -> None:
    """Cancelling the task that runs the tool is the status cancelled."""
    async with open_world() as world:
        task = asyncio.create_task(use_tool(world.session("a"), 100))
        await anyio.sleep(2)
        task.cancel()
        await asyncio.wait([task])
        [ended] = world.heard(ToolEnded)
        assert task.cancelled()
        assert (ended.status, ended.seconds) == ("cancelled", 2)


@virtual
async def test_a_tool_can_report_its_failure() -> None:
    """fail() gives the status of a tool that does not raise."""
    async with open_world() as world:
        session = world.session("a")
        for status in ("error", "timeout"):
            async with session.tool("Bash") as call:
                call.fail(status)
        assert [e.status for e in world.heard(ToolEnded)] == ["error", "timeout"]


@virtual
async def test_parallel_tools_are_one_wait() -> None:
    """The wait lasts from the first start to the last end; it parks once."""
    async with open_world("park") as world:
        session = world.session("a")
        await ask(session, 100)
        phases: list[Phase] = []
        async with anyio.create_task_group() as tasks:
            for seconds in (10, 30, 20):
                tasks.start_soon(use_tool, session, seconds)
            for _ in range(4):
                await anyio.sleep(9)
                phases.append(world.lane("a").phase)
        assert phases == [Phase.TOOL, Phase.TOOL, Phase.TOOL, Phase.IDLE]
        assert len(world.heard(CopyStarted)) == 1
        assert world.lane("a").waits == 1


@virtual
async def test_calls_one_after_the_other_are_two_waits() -> None:
    """Each call that begins when none is open begins a wait."""
    async with open_world("keep") as world:
        session = world.session("a")
        await ask(session)
        await use_tool(session, 1)
        await use_tool(session, 1)
        assert world.lane("a").waits == 2


@virtual
async def test_a_wait_parks_and_the_next_turn_restores() -> None:
    """104 tokens take 1.04 s out and 0.52 s back; the turn then reuses all of them."""
    async with open_world("park") as world:
        session = world.session("a")
        await ask(session, 100)
        async with session.tool("Bash"):
            await anyio.sleep(1)
            assert world.residency("a") is Residency.PARKING
            await anyio.sleep(1)
            assert world.residency("a") is Residency.PARKED
            assert await world.stored_bytes() == 1040
            assert world.runtime.scheduler.reserved_tokens == 0
        reply = await ask(session, 10)
        assert reply.usage.reused_tokens == 104
        assert reply.usage.ttft_s == pytest.approx(0.52 + 0.11)


@virtual
async def test_a_tool_that_ends_while_its_state_is_copied() -> None:
    """The state stays resident, the copy is kept, nothing is restored."""
    async with open_world("park") as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, 0.5)
        assert world.residency("a") is Residency.PARKING
        reply = await ask(session, 10)
        assert reply.usage.queue_s == pytest.approx(0.54)
        assert reply.usage.reused_tokens == 104
        assert world.heard(Released) == []
        assert world.heard(RestoreStarted) == []


@virtual
async def test_a_clean_session_leaves_without_a_copy() -> None:
    """What has been copied and has not grown is released at once the next time."""
    async with open_world("park") as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, 0.5)
        await world.rest()
        assert world.residency("a") is Residency.RESIDENT
        async with session.tool("Bash"):
            assert world.residency("a") is Residency.PARKED
        assert len(world.heard(CopyStarted)) == 1


@virtual
async def test_hold_parks_only_the_long_waits() -> None:
    """Under hold:2 a wait of 1.9 s moves nothing, one of 10 s is parked 2 s in."""
    async with open_world("hold:2") as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, 1.9)
        assert (await ask(session, 10)).usage.reused_tokens == 104
        await world.rest()
        assert world.heard(CopyStarted) == []
        began_s = anyio.current_time()
        await use_tool(session, 10)
        [copy] = world.heard(CopyStarted)
        assert copy.at_s - began_s == pytest.approx(2)
        assert world.residency("a") is Residency.PARKED


@virtual
async def test_hold_counts_each_wait_from_its_own_start() -> None:
    """Two waits of 1.5 s in a row are no wait of 3 s."""
    async with open_world("hold:2") as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, 1.5)
        await use_tool(session, 1.5)
        await world.rest()
        assert world.heard(CopyStarted) == []


@virtual
async def test_drop_lets_go_at_once() -> None:
    """Under drop nothing is copied and the next turn computes everything."""
    async with open_world("drop") as world:
        session = world.session("a")
        await ask(session, 100)
        async with session.tool("Bash"):
            assert world.residency("a") is Residency.ABSENT
        assert (await ask(session, 10)).usage.reused_tokens == 0


@virtual
async def test_a_user_wait_is_no_tool_wait() -> None:
    """Under park a session that waits for its user keeps its state."""
    async with open_world("park") as world:
        session = world.session("a")
        await ask(session, 100)
        await world.rest()
        assert world.residency("a") is Residency.RESIDENT
        assert world.heard(CopyStarted) == []


@virtual
async def test_a_background_tool_does_not_hinder_turns() -> None:
    """A turn while a call is open runs; its end begins a new wait for that call."""
    async with open_world("keep", backend=RoundBackend(slots=1)) as world:
        session = world.session("a")
        await ask(session, 10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use_tool, session, 100)
            await anyio.sleep(1)
            reply = await ask(session, 10)
            assert reply.usage.reused_tokens == 14
            assert world.lane("a").phase is Phase.TOOL
        assert (world.lane("a").waits, world.lane("a").phase) == (2, Phase.IDLE)


@virtual
async def test_a_tool_before_the_first_turn() -> None:
    """A wait without any state moves nothing under every policy."""
    for policy in ("park", "drop", "keep", "hold:1"):
        async with open_world(policy) as world:
            await use_tool(world.session("a"), 5)
            assert world.heard(CopyStarted) == []
            assert world.heard(Released) == []


@virtual
async def test_an_error_in_a_parallel_tool_ends_the_wait() -> None:
    """One failing call cancels its siblings' scope; the wait ends with the last."""
    async with open_world("keep") as world:
        session = world.session("a")
        await ask(session)
        with suppress(ExceptionGroup):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(use_tool, session, 50)
                await anyio.sleep(1)
                async with session.tool("Web"):
                    raise ValueError("no such page")
        statuses = {ended.tool: ended.status for ended in world.heard(ToolEnded)}
        assert statuses == {"Bash": "cancelled", "Web": "error"}
        assert world.lane("a").phase is Phase.IDLE


@virtual
async def test_a_call_has_a_class() -> None:
    """It follows from the name and a shell's command, or is given; no command stays."""
    async with open_world() as world:
        session = world.session("a")
        for call in (
            session.tool("Read"),
            session.tool("Bash", command="pytest -q tests"),
            session.tool("lookup", class_name="web"),
            session.tool("lookup"),
        ):
            async with call:
                pass
        classes = [event.tool_class for event in world.heard(ToolEnded)]
        assert classes == ["read", "test", "web", "other"]
        assert "pytest" not in repr(world.events)


@virtual
async def test_a_caller_may_know_how_long_a_tool_takes() -> None:
    """What it expects goes with the start; who does not know says nothing."""
    async with open_world("keep") as world:
        session = world.session("a")
        async with session.tool("Bash", expected_s=8), session.tool("Grep"):
            calls = world.lane("a").open_calls.values()
            assert [call.expected_s for call in calls] == [8, None]
        assert [event.expected_s for event in world.heard(ToolStarted)] == [8, None]


@pytest.mark.parametrize("expected_s", [-1.0, math.nan, math.inf])
@virtual
async def test_a_tool_that_cannot_take_so_long(expected_s: float) -> None:
    """A negative or endless expectation is refused before the call begins."""
    async with open_world() as world:
        session = world.session("a")
        with pytest.raises(WrongInput, match=f"'Bash' must be finite.*{expected_s}"):
            session.tool("Bash", expected_s=expected_s)
        assert world.heard(ToolStarted) == []
