"""Redis is killed, stopped, filled and tampered with below a real engine.

Two sessions share one slot, so there is a park and a restore at every turn. Whatever
happens below: all turns are answered with the tokens of a run in peace, none waits for
long, parking works again by itself, and nothing stays behind.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

from kvalet import LlamaBackend, MemoryStore, Runtime, Sampling, Session, TieredStore
from kvalet.scheduler import (
    Copied,
    CopyFailed,
    CopyStarted,
    Event,
    Restored,
    RestoreFailed,
    RestoreStarted,
)
from kvalet.state_store import Inventory
from kvalet.state_store.redis import RedisStore

from ..servers import Server, any_program, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXACT = Sampling(ignore_stop=True)
TURNS = 6
STRUCK = 3  # at the third move of its kind
MOST_TURN_S = 15.0
HEALED_AFTER_S = 0.8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tiny_gguf: Path) -> AsyncGenerator[LlamaBackend, None]:
    """A real engine with one slot."""
    async with aclosing(
        await LlamaBackend.start(model_path=tiny_gguf, slots=1, context_tokens=2048)
    ) as backend:
        yield backend


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(backend: LlamaBackend) -> list[tuple[int, ...]]:
    """What the session says in peace."""
    async with (
        Runtime(backend, policy="keep") as runtime,
        runtime.session() as session,
    ):
        return [await say(session, number) for number in range(TURNS)]


async def say(session: Session, number: int) -> tuple[int, ...]:
    """Return the answer of one turn."""
    prompt = [(number * 31 + token * 7) % 200 + 20 for token in range(60)]
    with anyio.fail_after(MOST_TURN_S):
        reply = await session.turn(prompt, max_tokens=6, sampling=EXACT)
    return reply.token_ids


# ---- what happens to the server ------------------------------------------------------


def chunks(server: Server) -> list[str]:
    """Return the keys of all chunks."""
    words = server.ask("KEYS", "kvalet:*").split("\r\n")
    return [word for word in words if word.startswith("kvalet:") and word[-1].isdigit()]


def manifests(server: Server) -> list[str]:
    """Return the keys of all manifests."""
    words = server.ask("KEYS", "kvalet:*").split("\r\n")
    return [word for word in words if word.startswith("kvalet:") and word[-2:] == ":m"]


def evict(server: Server) -> None:
    """Take one chunk of each state away, as an eviction would."""
    for key in chunks(server):
        server.ask("UNLINK", key)


def flip(server: Server) -> None:
    """Change a byte in each chunk."""
    for key in chunks(server):
        server.ask("SETRANGE", key, "7", "!")


def cut(server: Server) -> None:
    """Make each chunk shorter."""
    for key in chunks(server):
        server.ask("SET", key, "short")


def muddle(server: Server) -> None:
    """Put something else where manifests are."""
    for key in manifests(server):
        server.ask("HSET", key, "d", "no manifest of ours")


def fill(server: Server) -> None:
    """Leave no room for anything."""
    server.ask("CONFIG", "SET", "maxmemory", "1")


def empty(server: Server) -> None:
    """Give the room back."""
    server.ask("CONFIG", "SET", "maxmemory", "0")


def demote(server: Server) -> None:
    """Make it a replica of nobody that answers: it takes no writes."""
    server.ask("REPLICAOF", "127.0.0.1", "1")


def promote(server: Server) -> None:
    """Make it a primary again."""
    server.ask("REPLICAOF", "NO", "ONE")


def kill_what_hangs(server: Server) -> None:
    """Kill it while a command is on its way."""
    server.pause()
    asyncio.get_running_loop().call_later(0.05, server.kill)


def nothing(server: Server) -> None:
    """It needs no healing."""


Act = Callable[[Server], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is done to the server, at which move, and how it is mended."""

    strike: Act
    at: type[CopyStarted | RestoreStarted]
    heal: Act = nothing
    fails: type[CopyFailed | RestoreFailed] | None = None


FAULTS = {
    "killed mid-park": Fault(
        strike=kill_what_hangs, at=CopyStarted, heal=Server.start, fails=CopyFailed
    ),
    "killed mid-restore": Fault(
        strike=kill_what_hangs,
        at=RestoreStarted,
        heal=Server.start,
        fails=RestoreFailed,
    ),
    "paused at a park": Fault(
        strike=Server.pause, at=CopyStarted, heal=Server.resume, fails=CopyFailed
    ),
    "paused at a restore": Fault(
        strike=Server.pause,
        at=RestoreStarted,
        heal=Server.resume,
        fails=RestoreFailed,
    ),
    "full": Fault(strike=fill, at=CopyStarted, heal=empty, fails=CopyFailed),
    "read-only": Fault(strike=demote, at=CopyStarted, heal=promote, fails=CopyFailed),
    "chunks evicted": Fault(strike=evict, at=RestoreStarted, fails=RestoreFailed),
    "a byte flipped": Fault(strike=flip, at=RestoreStarted, fails=RestoreFailed),
    "chunks cut short": Fault(strike=cut, at=RestoreStarted, fails=RestoreFailed),
    # Whoever has the lease knows what it has parked, and writes it anew.
    "manifests muddled": Fault(strike=muddle, at=RestoreStarted),
}


@dataclass(slots=True)
class Trouble:
    """Strikes once, at the move that it is for, and mends it a while later."""

    fault: Fault
    server: Server
    events: list[Event] = field(default_factory=list[Event])
    moves: int = 0
    struck: bool = False
    healed: bool = False

    def hear(self, event: Event) -> None:
        """Observe the runtime."""
        self.events.append(event)
        if isinstance(event, self.fault.at) and event.session == "a":
            self.moves += 1
            if self.moves == STRUCK:
                self.struck = True
                self.fault.strike(self.server)
                loop = asyncio.get_running_loop()
                loop.call_later(HEALED_AFTER_S, self._heal)

    def _heal(self) -> None:
        self.fault.heal(self.server)
        self.healed = True

    def count(self, kind: type[Event]) -> int:
        """Return how many events of a kind there were."""
        return sum(isinstance(event, kind) for event in self.events)


# ---- the tests -----------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_whatever_happens_to_redis(
    backend: LlamaBackend, expected: list[tuple[int, ...]], fault: Fault
) -> None:
    """The fault is counted, the turns are right and in time, parking works again."""
    with serve(any_program()) as server:
        trouble = Trouble(fault, server)
        opened = await RedisStore.open(server.url, ttl_s=2.0, lease_s=2.0)
        async with aclosing(opened) as store:
            assert await live_through(backend, store, trouble) == expected
            assert fault.fails is None or trouble.count(fault.fails)
            assert (await store.stat()).stored_bytes == 0
        await nothing_left(server)


@pytest.mark.parametrize("name", ["killed mid-park", "paused at a park", "full"])
async def test_memory_in_front_bridges_it(
    backend: LlamaBackend, expected: list[tuple[int, ...]], name: str
) -> None:
    """With host memory in front of it no copy fails, and nothing is computed again."""
    with serve(any_program()) as server:
        trouble = Trouble(FAULTS[name], server)
        below = await RedisStore.open(server.url, ttl_s=2.0, lease_s=2.0)
        async with aclosing(TieredStore([MemoryStore(None), below])) as store:
            assert await live_through(backend, store, trouble) == expected
            assert trouble.count(CopyFailed) == trouble.count(RestoreFailed) == 0
            assert (await store.stat()).tiers[0].stored_bytes == 0
        await nothing_left(server)


async def test_a_clock_that_jumps(
    backend: LlamaBackend,
    expected: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing depends on the time of day: leases and lifetimes are the server's."""
    jumps = itertools.cycle([0.0, 86_400.0, -86_400.0])
    time_of_day = time.time
    monkeypatch.setattr(time, "time", lambda: time_of_day() + next(jumps))
    events = list[Event]()
    with serve(any_program()) as server:
        opened = await RedisStore.open(server.url, ttl_s=2.0, lease_s=2.0)
        async with (
            aclosing(opened) as store,
            Runtime(
                backend, store=store, policy="park", observers=[events.append]
            ) as runtime,
            runtime.session("a") as session,
            runtime.session("b") as other,
        ):
            for number in range(TURNS):
                assert await say(session, number) == expected[number]
                async with session.tool("Bash"):
                    await say(other, 0)
        await nothing_left(server)
    failures = CopyFailed | RestoreFailed
    assert not [event for event in events if isinstance(event, failures)]


async def test_two_owners_of_one_session(
    backend: LlamaBackend, expected: list[tuple[int, ...]], tiny_gguf: Path
) -> None:
    """Who comes second computes, and takes nothing from who has the lease."""
    first_events, second_events = list[Event](), list[Event]()
    with serve(any_program()) as server:
        async with (
            aclosing(await RedisStore.open(server.url, ttl_s=2.0)) as first_store,
            aclosing(await RedisStore.open(server.url, ttl_s=2.0)) as second_store,
            aclosing(
                await LlamaBackend.start(model_path=tiny_gguf, context_tokens=2048)
            ) as second_backend,
            Runtime(
                backend,
                store=first_store,
                policy="park",
                observers=[first_events.append],
            ) as first,
            Runtime(
                second_backend,
                store=second_store,
                policy="park",
                observers=[second_events.append],
            ) as second,
        ):
            session = first.session("a")
            assert await say(session, 0) == expected[0]
            async with session.tool("Bash"):
                while not any(isinstance(event, Copied) for event in first_events):
                    await anyio.sleep(0.01)
                rival = second.session("a", resume=True)
                assert await say(rival, 0) == expected[0]
                async with rival.tool("Bash"):
                    while not any(isinstance(e, CopyFailed) for e in second_events):
                        await anyio.sleep(0.01)
                await rival.aclose()
            assert await say(session, 1) == expected[1]
        assert [type(event) for event in first_events].count(Restored) == 1
        assert not [e for e in second_events if isinstance(e, Restored | Copied)]
        await nothing_left(server)


async def live_through(
    backend: LlamaBackend, store: Inventory, trouble: Trouble
) -> list[tuple[int, ...]]:
    """Return what a session says; go on until parking works again."""
    said: list[tuple[int, ...]] = []
    async with (
        Runtime(
            backend, store=store, policy="park", observers=[trouble.hear]
        ) as runtime,
        runtime.session("a") as session,
        runtime.session("b") as other,
    ):
        for number in range(TURNS):
            said.append(await say(session, number))
            async with session.tool("Bash"):
                await say(other, 0)
        assert trouble.struck
        with anyio.fail_after(20):
            while not trouble.healed:
                await anyio.sleep(0.02)
            known = trouble.count(Copied), trouble.count(Restored)
            while not (
                trouble.count(Copied) > known[0] and trouble.count(Restored) > known[1]
            ):
                await say(session, 1)
                async with session.tool("Bash"):
                    await say(other, 1)
                    await anyio.sleep(0.05)
        runtime.scheduler.check_integrity()
    return said


async def nothing_left(server: Server) -> None:
    """Return when no key is left; raise TimeoutError if one outlives its time."""
    with anyio.fail_after(15):
        while "kvalet:" in (await anyio.to_thread.run_sync(server.ask, "KEYS", "*")):
            await anyio.sleep(0.1)
