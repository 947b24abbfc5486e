"""A runtime with several accelerators: who lives where, and who moves when."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from kvalet.backends import EngineLost, Prefilled, Request
from kvalet.runtime.client import Session
from kvalet.runtime.runtime import Runtime
from kvalet.scheduler import (
    CopyFound,
    Event,
    IllegalMove,
    Restored,
    SessionId,
    ToolEnded,
    UnknownSession,
)
from kvalet.state_store import MemoryStore

from .backends import RoundBackend
from .world import ask, use_tool, virtual


class Mortal(RoundBackend):
    """Dies when it is told to, and can't be restarted."""

    dead = False

    async def prefill(self, slot: int, request: Request) -> Prefilled:
        """Fail from the death on."""
        if self.dead:
            raise EngineLost("the engine is gone")
        return await super().prefill(slot, request)


@dataclass
class Town:
    """A runtime on several accelerators, its store and what has happened."""

    runtime: Runtime
    backends: Sequence[RoundBackend]
    store: MemoryStore
    events: list[Event] = field(default_factory=list[Event])

    def home(self, session: str) -> int:
        """Return the number of the accelerator that a session lives on."""
        for number, scheduler in enumerate(self.runtime.schedulers):
            try:
                scheduler.session(SessionId(session))
            except UnknownSession:
                continue
            return number
        raise AssertionError(f"{session} lives nowhere")


@asynccontextmanager
async def open_town(
    *backends: RoundBackend, policy: str = "park"
) -> AsyncGenerator[Town, None]:
    """Yield a town; nothing of its sessions is left anywhere at the end."""
    store, events = MemoryStore(None), list[Event]()
    async with Runtime(
        backends, store=store, policy=policy, observers=[events.append]
    ) as runtime:
        yield Town(runtime, backends, store, events)
        await anyio.sleep(100)
        for scheduler in runtime.schedulers:
            scheduler.check_integrity()
            assert (scheduler.sessions, scheduler.reserved_tokens) == (0, 0)
        assert (await store.stat()).states == 0


@virtual
async def test_new_sessions_go_where_room_is() -> None:
    """Two agents on two accelerators of one slot each work side by side."""
    async with (
        open_town(RoundBackend(), RoundBackend()) as town,
        town.runtime.session("a") as a,
        town.runtime.session("b") as b,
    ):
        first = asyncio.create_task(_ask(a))
        await anyio.sleep(0.1)
        async with town.runtime.session("c"):
            assert town.home("c") == 1
        await asyncio.gather(first, _ask(b))


async def _ask(session: Session) -> None:
    await ask(session, 100)


@virtual
async def test_a_subagent_lives_with_its_parent() -> None:
    """So do forks: what the parent has is of use there only."""
    async with (
        open_town(RoundBackend(slots=2), RoundBackend(slots=2)) as town,
        town.runtime.session("a") as a,
    ):
        await ask(a, 100)
        assert town.home("a") == 0
        async with town.runtime.session("b", parent="a"), a.fork("c"):
            assert (town.home("b"), town.home("c")) == (0, 0)


@virtual
async def test_an_id_is_taken_on_all_of_them() -> None:
    """A session's id is refused while it is open, wherever that is."""
    async with (
        open_town(RoundBackend(), RoundBackend()) as town,
        town.runtime.session("a") as a,
    ):
        await ask(a, 10)
        with pytest.raises(IllegalMove, match="'a' is open already"):
            town.runtime.session("a")


@virtual
async def test_a_parked_session_moves_from_a_full_home() -> None:
    """Its state is restored where there is room, while its home is occupied."""
    first, second = RoundBackend(), RoundBackend()
    async with (
        open_town(first, second) as town,
        town.runtime.session("a") as a,
        a.fork("b") as b,
    ):
        await ask(a, 100)
        await use_tool(a, 10)
        busy = asyncio.create_task(ask(b, 500, 50))
        await anyio.sleep(1)
        reply = await ask(a, 10)
        assert (town.home("a"), town.home("b")) == (1, 0)
        assert reply.usage.reused_tokens == 104
        assert reply.usage.queue_s < 1
        await busy


@virtual
async def test_who_is_resident_stays() -> None:
    """A session whose state is on its accelerator waits there for its turn."""
    first, second = RoundBackend(slots=2), RoundBackend(slots=2)
    async with (
        open_town(first, second, policy="keep") as town,
        town.runtime.session("a") as a,
        a.fork("b") as b,
    ):
        await ask(a, 100)
        busy = asyncio.create_task(ask(b, 500, 50))
        await anyio.sleep(1)
        reply = await ask(a, 10)
        assert town.home("a") == 0
        assert reply.usage.reused_tokens == 104
        await busy


@virtual
async def test_a_dead_home_is_left() -> None:
    """What was parked is restored elsewhere; the turn that met the death goes on."""
    mortal = Mortal()
    async with (
        open_town(mortal, RoundBackend()) as town,
        town.runtime.session("a") as a,
    ):
        await ask(a, 100)
        await use_tool(a, 10)
        mortal.dead = True
        reply = await ask(a, 10)
        assert town.home("a") == 1
        assert reply.usage.prompt_tokens == 115
        found = [event for event in town.events if isinstance(event, CopyFound)]
        assert [event.kv_tokens for event in found] == [104]
        assert [type(event) for event in town.events].count(Restored) == 2
        # Nobody else is sent there, for a while.
        async with town.runtime.session("b") as b:
            assert town.home("b") == 1
            await ask(b, 10)
        await anyio.sleep(60)
        mortal.dead = False
        async with town.runtime.session("c") as c:
            assert town.home("c") == 0
            await ask(c, 10)


@virtual
async def test_what_was_resident_in_a_dead_home_is_computed_again() -> None:
    """Without a copy there is nothing to restore; no turn is lost."""
    mortal = Mortal()
    async with (
        open_town(mortal, RoundBackend(), policy="keep") as town,
        town.runtime.session("a") as a,
    ):
        await ask(a, 100)
        mortal.dead = True
        reply = await ask(a, 10)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (115, 0)


@virtual
async def test_the_last_home_has_no_refuge() -> None:
    """Where all are gone, the turn says so."""
    mortals = [Mortal(), Mortal()]
    async with open_town(*mortals) as town, town.runtime.session("a") as a:
        await ask(a, 100)
        for mortal in mortals:
            mortal.dead = True
        with pytest.raises(EngineLost, match="is gone"):
            await ask(a, 10)


@virtual
async def test_a_background_call_moves_along() -> None:
    """A tool call that is open when its session moves ends where that is then."""
    mortal = Mortal()
    async with (
        open_town(mortal, RoundBackend()) as town,
        town.runtime.session("a") as a,
    ):
        await ask(a, 100)
        async with a.tool("Bash"):
            await anyio.sleep(10)
            mortal.dead = True
            await ask(a, 10)
            assert town.home("a") == 1
        lane = town.runtime.schedulers[1].session(SessionId("a"))
        assert not lane.open_calls
        ended = [event for event in town.events if isinstance(event, ToolEnded)]
        assert [event.seconds > 10 for event in ended] == [True]
