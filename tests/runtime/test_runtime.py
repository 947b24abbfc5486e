"""The runtime as a whole: lost state, shared slots, the ends of things, repetition."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import anyio
import pytest

from kvalet.runtime.client import Session
from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.errors import SessionEnded, Unsupported
from kvalet.runtime.runtime import Runtime
from kvalet.runtime.turn import Reply
from kvalet.scheduler import (
    Copied,
    CopyFailed,
    CopyForgotten,
    CopyLost,
    Event,
    IllegalMove,
    InvalidSetting,
    Park,
    PrefillDone,
    PrefillStarted,
    Released,
    Residency,
    Restored,
    RestoreFailed,
    SessionClosed,
    SessionOpened,
)
from kvalet.state_store import KVState, MemoryStore, Receipt

from .backends import (
    FailingExports,
    NoExports,
    RefusedImports,
    RoundBackend,
    SilentImports,
    Stream,
)
from .world import World, ask, open_world, use_tool, virtual

# ---- state that is lost costs time, never a turn -------------------------------------


async def _ask_after_wait(world: World) -> Reply:
    """Run a turn, a long tool wait and a turn; return the second reply."""
    session = world.session("a")
    await ask(session, 100)
    await use_tool(session, 50)
    reply = await ask(session, 10)
    assert reply.usage.prompt_tokens == 115
    assert session.context_tokens == 120
    return reply


@virtual
async def test_a_failed_export_leaves_the_state_where_it_is() -> None:
    """CopyFailed says why; the next turn finds everything resident."""
    async with open_world(backend=FailingExports()) as world:
        reply = await _ask_after_wait(world)
        assert reply.usage.reused_tokens == 104
        [failed] = world.heard(CopyFailed)
        assert failed.reason == "slot 0 gave 0 bytes for 'a'"


@virtual
async def test_a_failed_export_under_pressure_drops_the_state() -> None:
    """Where another needs the memory, state that can't be copied goes without one."""
    async with open_world(Park(hold_s=1000), backend=FailingExports()) as world:
        a, b = world.session("a"), world.session("b")
        await ask(a, 100)
        async with a.tool("Bash"):
            await ask(b, 100)
            assert world.residency("a") is Residency.ABSENT
        assert (await ask(a, 10)).usage.reused_tokens == 0
        assert len(world.heard(CopyFailed)) >= 1


@virtual
async def test_a_refused_import_is_a_counted_prefill() -> None:
    """RestoreFailed says why; everything is computed and the copy is forgotten."""
    async with open_world(backend=RefusedImports()) as world:
        reply = await _ask_after_wait(world)
        assert reply.usage.reused_tokens == 0
        [failed] = world.heard(RestoreFailed)
        assert failed.reason == "state 'a' is of another build"
        assert len(world.heard(CopyForgotten)) == 1
        await world.rest()
        assert await world.stored_bytes() == 0


@virtual
async def test_an_import_that_did_nothing_is_noticed() -> None:
    """Where less is reused than was restored, the event says both numbers."""
    async with open_world(backend=SilentImports()) as world:
        await _ask_after_wait(world)
        done = world.heard(PrefillDone)[-1]
        assert (done.reused_tokens, done.expected_tokens) == (0, 104)
        assert done.computed_tokens == 115


@virtual
async def test_a_missing_state_is_a_counted_prefill() -> None:
    """State that somebody took out of the store is computed again."""
    async with open_world() as world:
        session = world.session("a")
        await ask(session, 100)
        async with session.tool("Bash"):
            await anyio.sleep(50)
            await world.store.drop("a")
        assert (await ask(session, 10)).usage.reused_tokens == 0
        [failed] = world.heard(RestoreFailed)
        assert "no state is parked under 'a'" in failed.reason


@virtual
async def test_a_corrupt_state_is_a_counted_prefill() -> None:
    """State that fails its checksum never comes near the engine."""
    async with open_world() as world:
        session = world.session("a")
        await ask(session, 100)
        async with session.tool("Bash"):
            await anyio.sleep(50)
            state, _ = await world.store.fetch("a")
            await world.store.drop("a")
            await world.store.park(replace(state, payloads=(b"12345678",)))
        assert (await ask(session, 10)).usage.reused_tokens == 0
        [failed] = world.heard(RestoreFailed)
        assert "fails its checksum" in failed.reason
        assert world.heard(Restored) == []


@virtual
async def test_an_evicted_copy_is_heard_of_at_once() -> None:
    """A store for one state of two: CopyLost for the first, which computes again."""
    store = MemoryStore(1500)
    async with open_world(backend=RoundBackend(slots=2), store=store) as world:
        a, b = world.session("a"), world.session("b")
        await ask(a, 100)
        async with a.tool("Bash"):
            await anyio.sleep(5)
            await ask(b, 100)
            async with b.tool("Bash"):
                await anyio.sleep(5)
                assert [lost.session for lost in world.heard(CopyLost)] == ["a"]
                assert world.residency("a") is Residency.ABSENT
                assert world.residency("b") is Residency.PARKED
        assert (await ask(a, 10)).usage.reused_tokens == 0
        assert (await ask(b, 10)).usage.reused_tokens == 104


@virtual
async def test_a_state_too_large_for_the_store_stays() -> None:
    """StoreFull is a failed copy: the state stays resident and the turn reuses it."""
    async with open_world(store=MemoryStore(1039)) as world:
        reply = await _ask_after_wait(world)
        assert reply.usage.reused_tokens == 104
        [failed] = world.heard(CopyFailed)
        assert "1,040 bytes, the store takes 1,039" in failed.reason


@virtual
async def test_an_edited_history_reuses_its_prefix() -> None:
    """Parked state is restored for what it shares; then the old copy is forgotten."""
    async with open_world() as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, 50)
        assert await world.stored_bytes() == 1040
        reply = await session.turn([2] * 10, max_tokens=5, keep_tokens=50)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (60, 50)
        await world.rest()
        assert await world.stored_bytes() == 0


# ---- sessions that share slots -------------------------------------------------------


async def _agent(world: World, name: str, turns: int, wait_s: float) -> list[Reply]:
    session = world.session(name)
    replies = list[Reply]()
    for _ in range(turns):
        replies.append(await ask(session, 20))
        await use_tool(session, wait_s)
    return replies


@pytest.mark.parametrize("policy", ["keep", "drop", "park", "hold:1"])
@virtual
async def test_two_sessions_take_turns_on_one_slot(policy: str) -> None:
    """Each gets its own conversation, whatever moves in between; nobody overlaps."""
    async with open_world(policy) as world:
        agents = [
            asyncio.create_task(_agent(world, name, 5, wait_s))
            for name, wait_s in (("a", 2.0), ("b", 3.0))
        ]
        for replies in await asyncio.gather(*agents):
            lengths = [reply.usage.prompt_tokens for reply in replies]
            assert lengths == [20, 45, 70, 95, 120]
        assert _overlaps(world.events) == []


def _overlaps(events: list[Event]) -> list[Event]:
    """Return the prefills that began on a slot before its last holder had left it."""
    holder: str | None = None
    found = list[Event]()
    for event in events:
        if isinstance(event, PrefillStarted):
            if holder not in (None, event.session):
                found.append(event)
            holder = event.session
        elif isinstance(event, Released):
            holder = None
    return found


@virtual
async def test_park_restores_what_drop_computes_again() -> None:
    """On one slot, two agents: park reuses the history, drop never does."""
    reused = dict[str, int]()
    for policy in ("park", "drop"):
        async with open_world(policy) as world:
            await asyncio.gather(_agent(world, "a", 3, 5.0), _agent(world, "b", 3, 5.0))
            done = world.heard(PrefillDone)
            reused[policy] = sum(event.reused_tokens for event in done)
    assert reused == {"park": 2 * (24 + 49), "drop": 0}


@virtual
async def test_memory_for_one_lets_two_agents_pass() -> None:
    """Two slots but KV tokens for one context: they take turns, neither starves."""
    backend = RoundBackend(slots=2, kv_tokens=130, context_tokens=130)
    async with open_world("park", backend=backend) as world:
        replies = await asyncio.gather(
            _agent(world, "a", 5, 1.0), _agent(world, "b", 5, 1.0)
        )
        assert [len(each) for each in replies] == [5, 5]


# ---- ends ----------------------------------------------------------------------------


@virtual
async def test_sessions_need_an_open_runtime() -> None:
    """Outside of its block a runtime has neither sessions nor a scheduler."""
    runtime = Runtime(RoundBackend())
    with pytest.raises(SessionEnded, match="async with"):
        runtime.session("a")
    async with runtime:
        session = runtime.session("a")
    with pytest.raises(SessionEnded):
        await ask(session)
    with pytest.raises(SessionEnded):
        runtime.session("b")


@virtual
async def test_ids_are_the_callers_or_fresh() -> None:
    """A name that is taken is refused until it is free again; none gives a new one."""
    async with open_world() as world:
        first = world.session("a")
        with pytest.raises(IllegalMove, match="'a' is open already"):
            world.runtime.session("a")
        with pytest.raises(InvalidSetting, match="must not be empty"):
            world.runtime.session("")
        await first.aclose()
        world.session("a")
        async with world.runtime.session() as one, world.runtime.session() as two:
            assert one.id != two.id


@virtual
async def test_a_session_knows_its_parent() -> None:
    """A subagent's first event names whose tool it is."""
    async with open_world() as world:
        world.session("a")
        async with world.runtime.session("b", parent="a"):
            parents = [event.parent for event in world.heard(SessionOpened)]
            assert parents == [None, "a"]


@virtual
async def test_a_policy_that_parks_needs_a_backend_that_exports() -> None:
    """The mismatch is said when the runtime is made, not at the first park."""
    with pytest.raises(Unsupported, match="'park' moves KV state, and NoExports"):
        Runtime(NoExports(), policy="park")
    async with open_world("keep", backend=NoExports()) as world:
        await ask(world.session("a"))


@pytest.mark.parametrize(
    ("seconds", "residency"),
    [
        (0.5, Residency.PARKING),
        (5.0, Residency.PARKED),
        (None, Residency.RESIDENT),
    ],
)
@virtual
async def test_closing_wherever_the_state_is(
    seconds: float | None, residency: Residency
) -> None:
    """A session that ends while its state is copied, parked or resident leaves none."""
    async with open_world() as world:
        session = world.session("a")
        await ask(session, 100)
        if seconds is not None:
            await use_tool(session, seconds)
        assert world.residency("a") is residency
        await session.aclose()
        await world.rest()
        assert await world.stored_bytes() == 0
        assert world.backend.held_tokens == [0]
        assert world.runtime.scheduler.sessions == 0


@virtual
async def test_closing_while_the_state_is_restored() -> None:
    """A turn cancelled in its restore, its session closed at once: nothing is left."""
    async with open_world() as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, 50)
        with anyio.move_on_after(0.1):
            await ask(session, 10)
        assert world.residency("a") is Residency.RESTORING
        await session.aclose()
        await world.rest()
        assert await world.stored_bytes() == 0
        assert world.runtime.scheduler.sessions == 0


@virtual
async def test_the_end_of_a_session_frees_its_slot_for_the_queue() -> None:
    """A turn that waits for the slot of a closing session gets it."""
    async with open_world("keep") as world:
        async with world.runtime.session("a") as a:
            await ask(a, 100)
        assert (await ask(world.session("b"), 100)).usage.queue_s == 0
        assert [e.session for e in world.heard(SessionClosed)] == ["a"]


Work = Callable[[Session], Coroutine[Any, Any, object]]


async def _turn(session: Session) -> object:
    return await ask(session, 100)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.2, 1.6])
@virtual
async def test_leaving_the_runtime_with_turns_in_flight(seconds: float) -> None:
    """Whoever prefills, decodes or waits in the line gets SessionEnded, soon."""
    backend, store = Stream(), MemoryStore(None)
    async with Runtime(backend, store=store) as runtime:
        sessions = [runtime.session(name) for name in "abc"]
        tasks = [asyncio.create_task(_turn(session)) for session in sessions]
        await anyio.sleep(seconds)
    done, pending = await asyncio.wait(tasks, timeout=100)
    assert not pending
    assert {type(task.exception()) for task in done} <= {SessionEnded, type(None)}
    assert any(task.exception() for task in done)
    assert (await store.stat()).states == 0


@pytest.mark.parametrize("seconds", [0.5, 1.3, 2.0, 4.0])
@virtual
async def test_leaving_the_runtime_empties_store_and_slots(seconds: float) -> None:
    """Whatever is parked, being copied or resident when the block is left is gone."""
    backend, store = RoundBackend(slots=2), MemoryStore(None)
    async with Runtime(backend, store=store) as runtime:
        a, b = runtime.session("a"), runtime.session("b")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_turn_and_tool, a)
            tasks.start_soon(_turn_and_tool, b)
            await anyio.sleep(seconds)
            tasks.cancel_scope.cancel()
    assert (await store.stat()).states == 0
    assert backend.held_tokens == [0, 0]


async def _turn_and_tool(session: Session) -> None:
    await ask(session, 100)
    await use_tool(session, 50)


@virtual
async def test_one_backend_serves_one_runtime_after_the_other() -> None:
    """A second runtime finds the slots empty and the first one's ids free."""
    backend = RoundBackend()
    for _ in range(2):
        async with open_world("keep", backend=backend) as world:
            assert (await ask(world.session("a"), 100)).usage.reused_tokens == 0


class _SlowStore(MemoryStore):
    """Takes a while to keep a state and to give it back."""

    async def park(self, state: KVState, *, through: bool = False) -> Receipt:
        await anyio.sleep(0.05)
        return await super().park(state)

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        await anyio.sleep(0.05)
        return await super().fetch(key)


@virtual
async def test_the_seconds_of_a_move_hold_the_store_too() -> None:
    """Copied and Restored say how long engine and store took together."""
    async with open_world(store=_SlowStore(None)) as world:
        await _ask_after_wait(world)
        [copied], [restored] = world.heard(Copied), world.heard(Restored)
        assert copied.seconds == pytest.approx(1.04 + 0.05)
        assert restored.seconds == pytest.approx(0.52 + 0.05)
        assert (copied.nbytes, copied.tier, copied.kv_tokens) == (1040, "host", 104)


@pytest.mark.parametrize("seconds", [1.06, 1.2])
@virtual
async def test_a_slow_store_and_a_closing_session(seconds: float) -> None:
    """A session closed while the store still works on its state leaves nothing."""
    async with open_world(store=_SlowStore(None)) as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, seconds)
        await session.aclose()
        await world.rest()
        assert await world.stored_bytes() == 0


# ---- repetition ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["keep", "drop", "park", "hold:1"])
def test_the_same_program_gives_the_same_events(policy: str) -> None:
    """Two runs in virtual time are equal event by event, to the last digit."""

    async def run() -> list[Event]:
        backend = RoundBackend(slots=2, kv_tokens=260, context_tokens=250)
        async with open_world(policy, backend=backend) as world:
            names = {"a": 0.7, "b": 2.3, "c": 5.0}
            agents = [_agent(world, name, 4, s) for name, s in names.items()]
            await asyncio.gather(*agents)
        return world.events

    first, second = run_in_virtual_time(run()), run_in_virtual_time(run())
    assert first == second
    assert len(first) > 60


@virtual
async def test_a_restore_is_verified_by_the_next_prefill() -> None:
    """The event of the first prefill after a restore says whether it was real."""
    async with open_world() as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, 50)
        await ask(session, 10)
        await ask(session, 10)
        verified = [event.verified for event in world.heard(PrefillDone)]
        assert verified == [None, True, None]
