"""State that outlives its session, its runtime, and what the store does meanwhile."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from kvalet.runtime.client import Session
from kvalet.runtime.runtime import Runtime
from kvalet.scheduler import (
    Copied,
    CopyFailed,
    CopyFound,
    CopyLost,
    Event,
    Residency,
    Restored,
    RestoreFailed,
    SessionId,
)
from kvalet.state_store import (
    KVState,
    Manifest,
    MemoryStore,
    Receipt,
    StateMissing,
    StoreUnavailable,
)

from .backends import RoundBackend
from .world import ask, open_world, use_tool, virtual

FIRST = [1] * 100
# What the simulated model answers is zeros; the last sampled token has no state.
SAID = [*FIRST, *[0] * 5]


@asynccontextmanager
async def runtime_on(
    store: MemoryStore,
    events: list[Event] | None = None,
    *,
    policy: str = "park",
    persists: bool = True,
) -> AsyncGenerator[Runtime, None]:
    """Yield a runtime on a fresh accelerator, as after a restart of the process."""
    observers = [] if events is None else [events.append]
    backend = RoundBackend(slots=2, exports_rows=True)
    async with Runtime(
        backend, store=store, policy=policy, persists=persists, observers=observers
    ) as runtime:
        yield runtime


async def stored(store: MemoryStore) -> int:
    """Return how many states are parked."""
    return (await store.stat()).states


async def first_turn(runtime: Runtime, id: str = "a", **options: str) -> Session:
    """Open a session and have its first turn answered."""
    session = runtime.session(id, tenant=options.get("tenant", ""))
    await session.turn(FIRST, max_tokens=5)
    return session


@pytest.mark.parametrize("policy", ["park", "keep"])
@virtual
async def test_a_session_goes_on_in_the_next_runtime(policy: str) -> None:
    """What was on the accelerator at the end is in the store, and is found there."""
    store, events = MemoryStore(None), list[Event]()
    async with runtime_on(store, policy=policy) as runtime:
        await first_turn(runtime)
    assert await stored(store) == 1
    async with runtime_on(store, events) as runtime, runtime.session("a") as session:
        reply = await session.turn([*SAID, 7, 8], max_tokens=5)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (107, 104)
    assert [event.kv_tokens for event in events if isinstance(event, CopyFound)] == [
        104
    ]
    assert await stored(store) == 0


@virtual
async def test_only_a_runtime_that_persists_leaves_anything() -> None:
    """Otherwise whatever was parked is dropped at the end."""
    store = MemoryStore(None)
    async with runtime_on(store, persists=False) as runtime:
        await use_tool(await first_turn(runtime), 10)
        assert await stored(store) == 1
    assert await stored(store) == 0


@virtual
async def test_an_ended_session_leaves_nothing() -> None:
    """Its own end drops the state, persistent runtime or not."""
    store = MemoryStore(None)
    async with runtime_on(store) as runtime:
        session = await first_turn(runtime)
        await use_tool(session, 10)
        await session.aclose()
    assert await stored(store) == 0


@virtual
async def test_a_session_that_an_error_ended_can_be_taken_up_again() -> None:
    """Its state is kept; in the same runtime, the retry finds it."""
    store, events = MemoryStore(None), list[Event]()
    async with runtime_on(store, events) as runtime:
        with pytest.raises(OSError, match="disk on fire"):
            async with runtime.session("a") as session:
                await session.turn(FIRST, max_tokens=5)
                raise OSError("disk on fire")
        await anyio.sleep(10)
        async with runtime.session("a") as session:
            reply = await session.turn([*SAID, 7], max_tokens=5)
            assert reply.usage.reused_tokens == 104


@virtual
async def test_a_session_is_detached_and_taken_up_elsewhere() -> None:
    """A runtime that does not persist hands a session over all the same."""
    store = MemoryStore(None)
    async with runtime_on(store, persists=False) as runtime:
        session = await first_turn(runtime)
        await session.detach()
        await session.detach()
        await anyio.sleep(10)
        assert runtime.scheduler.sessions == 0
        async with runtime_on(store, persists=False) as other:
            again = other.session("a", resume=True)
            reply = await again.turn([*SAID, 7], max_tokens=5)
            assert reply.usage.reused_tokens == 104


@virtual
async def test_an_edited_history_is_worth_its_first_segments() -> None:
    """Of a state that goes on otherwise, the whole segments before that are used."""
    store, events = MemoryStore(None), list[Event]()
    async with runtime_on(store) as runtime:
        session = await first_turn(runtime)
        await use_tool(session, 10)
        await session.turn([7] * 20, max_tokens=5)
        await use_tool(session, 10)
    manifest = await store.find("a")
    ends = [segment.end_token for segment in manifest.segments]
    assert 104 in ends and ends[-1] == 129
    async with runtime_on(store, events) as runtime, runtime.session("a") as session:
        reply = await session.turn([*SAID, *[9] * 20], max_tokens=5)
        assert reply.usage.reused_tokens == 104
        await use_tool(session, 10)
        reply = await session.turn([5], max_tokens=5)
        assert reply.usage.reused_tokens == 129
    assert not [event for event in events if isinstance(event, CopyFailed)]


@virtual
async def test_what_is_of_other_tokens_is_dropped() -> None:
    """A state that shares nothing with the prompt is of no use to anybody."""
    store, events = MemoryStore(None), list[Event]()
    async with runtime_on(store) as runtime:
        await first_turn(runtime)
    async with runtime_on(store, events) as runtime:
        session = runtime.session("a")
        assert (await session.turn([9] * 100)).usage.reused_tokens == 0
        await anyio.sleep(0)
        assert await stored(store) == 0
    assert not [event for event in events if isinstance(event, CopyFound)]


@virtual
async def test_a_tenant_finds_its_own() -> None:
    """The same session id of another tenant is another session's."""
    store = MemoryStore(None)
    async with runtime_on(store) as runtime:
        await first_turn(runtime, tenant="mine")
    async with runtime_on(store) as runtime:
        session = runtime.session("a", tenant="theirs")
        reply = await session.turn([*SAID, 7], max_tokens=5)
        assert reply.usage.reused_tokens == 0


@virtual
async def test_fresh_ids_are_not_looked_for() -> None:
    """A session whose id nobody gave asks the store nothing."""

    class Asked(MemoryStore):
        finds = 0

        async def find(self, key: str) -> Manifest:
            self.finds += 1
            return await super().find(key)

    store = Asked(None)
    async with runtime_on(store) as runtime, runtime.session() as session:
        await session.turn(FIRST)
    assert store.finds == 0


# ---- stores that fail ----------------------------------------------------------------


class _Stuck(MemoryStore):
    """Answers nothing for an hour, where it is told to."""

    def __init__(self, *stuck: str) -> None:
        super().__init__(None)
        self.stuck = stuck

    async def park(self, state: KVState, *, through: bool = False) -> Receipt:
        await self._wait("park")
        return await super().park(state)

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        await self._wait("fetch")
        return await super().fetch(key)

    async def find(self, key: str) -> Manifest:
        await self._wait("find")
        return await super().find(key)

    async def _wait(self, call: str) -> None:
        if call in self.stuck:
            await anyio.sleep(3600)


@virtual
async def test_a_store_that_hangs_costs_a_restore_its_prefill() -> None:
    """A fetch is given up after as long as computing the state takes: 1.04 s."""
    async with open_world(store=_Stuck("fetch")) as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, 10)
        reply = await ask(session, 10)
        [failed] = world.heard(RestoreFailed)
        assert "longer than computing the state" in failed.reason
        assert reply.usage.ttft_s == pytest.approx(1.04 + 1.15, rel=0.01)


@virtual
async def test_a_store_that_hangs_keeps_no_state_from_its_turn() -> None:
    """A copy is given up after as long as computing the state takes."""
    async with open_world(store=_Stuck("park")) as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, 1.5)
        reply = await ask(session, 10)
        [failed] = world.heard(CopyFailed)
        assert "longer than computing the state" in failed.reason
        assert reply.usage.reused_tokens == 104
        assert reply.usage.ttft_s < 2.0


@virtual
async def test_a_store_that_hangs_is_not_asked_for_long() -> None:
    """It is given up after what the prompt is taken to cost before any was seen."""
    async with runtime_on(_Stuck("find")) as runtime, runtime.session("a") as session:
        reply = await session.turn(FIRST, max_tokens=5)
        assert reply.usage.ttft_s == pytest.approx(0.1 + 1.0)


class _Forgetful(MemoryStore):
    """Has lost what the next continuation goes behind, if it is told to."""

    forgets = False

    async def park(self, state: KVState, *, through: bool = False) -> Receipt:
        if state.manifest.first_token and self.forgets:
            self.forgets = False
            await self.drop(state.manifest.key)
            raise StateMissing(f"no state is parked under {state.manifest.key!r}")
        return await super().park(state)


@virtual
async def test_a_copy_whose_beginning_is_lost_is_made_anew() -> None:
    """Where the store misses what came before, the whole state is copied."""
    backend, store = RoundBackend(exports_rows=True), _Forgetful(None)
    async with open_world(backend=backend, store=store) as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, 10)
        store.forgets = True
        await ask(session, 10)
        await use_tool(session, 10)
        last = world.heard(Copied)[-1]
        assert (last.kv_tokens, last.nbytes) == (119, 1190)
        assert world.heard(CopyFailed) == []
        assert (await ask(session, 10)).usage.reused_tokens == 119


class _Down(MemoryStore):
    """Can't be reached."""

    async def park(self, state: KVState, *, through: bool = False) -> Receipt:
        raise StoreUnavailable("connection refused")


@virtual
async def test_a_store_that_is_down_stops_nobody() -> None:
    """Turns go on; each copy fails and says why; the state stays where it is."""
    async with open_world(store=_Down(None)) as world:
        session = world.session("a")
        for _ in range(3):
            await ask(session, 10)
            await use_tool(session, 10)
        reasons = {event.reason for event in world.heard(CopyFailed)}
        assert reasons == {"connection refused"}
        assert world.residency("a") is Residency.RESIDENT


# ---- what the store says and asks ----------------------------------------------------


@virtual
async def test_a_loss_that_the_store_reports_is_heard() -> None:
    """The session is absent from then on, and its turn computes at once."""
    async with open_world() as world:
        session = world.session("a")
        await ask(session, 100)
        async with session.tool("Bash"):
            await anyio.sleep(10)
            assert world.residency("a") is Residency.PARKED
            await world.store.drop("a")
            world.runtime.homes.lost("a")
            assert world.residency("a") is Residency.ABSENT
        await ask(session, 10)
        assert len(world.heard(CopyLost)) == 1
        assert world.heard(Restored) == []


@virtual
async def test_a_loss_of_another_tenants_session_is_not_ones_own() -> None:
    """Of the same id, it is told apart by its key."""
    async with open_world() as world:
        session = world.session("a")
        await ask(session, 100)
        async with session.tool("Bash"):
            await anyio.sleep(10)
            world.runtime.homes.lost("other/a")
            world.runtime.homes.moved("other/a", "disk")
            assert world.residency("a") is Residency.PARKED
            assert world.lane("a").tier == "host"
        assert world.heard(CopyLost) == []
        assert (await ask(session, 10)).usage.reused_tokens == 104


@virtual
async def test_what_is_needed_sooner_is_worth_more() -> None:
    """Worth is what a restore saves, by how soon it is expected."""
    backend = RoundBackend(slots=2)
    async with open_world(backend=backend) as world:
        sessions = {id: world.session(id) for id in ("soon", "late")}
        for id, session in sessions.items():
            for _ in range(3):
                await ask(session, 50)
                await use_tool(session, 5 if id == "soon" else 500, name=id)
        for session in sessions.values():
            await ask(session, 50)
        async with (
            sessions["soon"].tool("soon"),
            sessions["late"].tool("late"),
        ):
            await anyio.sleep(4)
            homes = world.runtime.homes
            soon, late = [homes.worth_s(await world.store.find(id)) for id in sessions]
            assert soon > 3 * late > 0
            stranger = KVState.seal(
                key="stranger",
                model="m",
                engine="e",
                layout="l",
                token_ids=[1],
                payload=b"",
            )
            assert homes.worth_s(stranger.manifest) == 0
        assert world.lane("soon").id == SessionId("soon")
