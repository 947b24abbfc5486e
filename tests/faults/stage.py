"""Two sessions, one slot, a store: what they say, how long it takes, what is left.

The other session takes the slot while a tool of the first one runs, so at every turn a
state is parked and one is restored, if the store lets them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import anyio

from kvalet import LlamaBackend, Runtime, Sampling, Session
from kvalet.scheduler import (
    Copied,
    CopyFailed,
    CopyStarted,
    Event,
    Restored,
    RestoreFailed,
    RestoreStarted,
)

from ..servers import Server

EXACT: Final = Sampling(ignore_stop=True)
LONG_TOKENS: Final = 1500
"""The first prompt: 375 KiB of rows, in 12 segments."""
TURNS: Final = 3
MOST_WAIT_S: Final = 1.3
"""How long a turn may wait for a store that fails: its patience, 0.1 s here, and as
much as a crowded machine may add."""
HEALED_S: Final = 15.0
"""After how long at most all is well again, once nothing is the matter any more."""
MOST_TURN_S: Final = 15.0

Tokens = tuple[int, ...]
Move = CopyStarted | RestoreStarted
Moved = Copied | CopyFailed | Restored | RestoreFailed


def prompt(number: int) -> list[int]:
    """Return what a turn adds to the conversation."""
    length = LONG_TOKENS if number == 0 else 40
    return [
        (number * 31 + token * 7 + token // 200) % 200 + 20 for token in range(length)
    ]


async def say(session: Session, number: int) -> Tokens:
    """Return the answer of one turn, which has to come in time."""
    with anyio.fail_after(MOST_TURN_S):
        reply = await session.turn(prompt(number), max_tokens=4, sampling=EXACT)
    return reply.token_ids


async def converse(runtime: Runtime, session: str, turns: int = TURNS) -> list[Tokens]:
    """Return what a session says, its slot being taken from it after every turn."""
    said: list[Tokens] = []
    async with runtime.session(session) as one, runtime.session() as other:
        for number in range(turns):
            said.append(await say(one, number))
            async with one.tool("Bash"):
                await say(other, 1)
    return said


async def undisturbed(backend: LlamaBackend, turns: int = TURNS) -> list[Tokens]:
    """Return what a session says that never leaves the accelerator."""
    async with Runtime(backend, policy="keep") as runtime, runtime.session() as session:
        return [await say(session, number) for number in range(turns)]


@dataclass(slots=True)
class Watch:
    """Writes all events down, and does something at one of them."""

    events: list[Event] = field(default_factory=list[Event])
    waits_s: list[float] = field(default_factory=list[float])
    _began_s: dict[tuple[str, bool], float] = field(
        default_factory=dict[tuple[str, bool], float]
    )
    _awaited: tuple[type[Move] | type[Moved], str, Callable[[], object]] | None = None

    def at(
        self, move: type[Move] | type[Moved], session: str, act: Callable[[], object]
    ) -> None:
        """Call *act* when a move of *session* begins or ends, the next time."""
        self._awaited = move, session, act

    @property
    def struck(self) -> bool:
        """Whether what was to be done has been."""
        return self._awaited is None

    def hear(self, event: Event) -> None:
        """Observe a runtime."""
        self.events.append(event)
        match event:
            case CopyStarted() | RestoreStarted():
                is_copy = isinstance(event, CopyStarted)
                self._began_s[event.session, is_copy] = monotonic()
            case Copied() | CopyFailed() | Restored() | RestoreFailed():
                is_copy = isinstance(event, (Copied, CopyFailed))
                began_s = self._began_s.pop((event.session, is_copy))
                self.waits_s.append(monotonic() - began_s)
            case _:
                return
        match self._awaited:
            case kind, event.session, act if isinstance(event, kind):
                self._awaited = None
                act()
            case _:
                pass

    def count(self, kind: type[Event]) -> int:
        """Return how many events of a kind there were."""
        return sum(isinstance(event, kind) for event in self.events)

    def reasons(self, kind: type[CopyFailed | RestoreFailed]) -> list[str]:
        """Return why moves failed."""
        return [event.reason for event in self.events if isinstance(event, kind)]


async def until_moving(runtime: Runtime, watch: Watch, limit_s: float = 15.0) -> float:
    """Go on until states are parked and restored again; return after how long."""
    began_s = monotonic()
    known = watch.count(Copied), watch.count(Restored)
    with anyio.fail_after(limit_s):
        while watch.count(Copied) == known[0] or watch.count(Restored) == known[1]:
            async with runtime.session() as one, runtime.session() as other:
                await say(one, 1)
                async with one.tool("Bash"):
                    await say(other, 2)
                await say(one, 2)
    return monotonic() - began_s


@asynccontextmanager
async def nothing_left(server: Server) -> AsyncGenerator[None, None]:
    """See to it that afterwards no task, no connection and, in time, no key is left."""
    tasks = asyncio.all_tasks()
    yield
    async with asyncio.timeout(2):
        while asyncio.all_tasks() - tasks:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(15):
        while connections(server) > 1:
            await asyncio.sleep(0.01)
        while keys_in(server):
            await asyncio.sleep(0.05)


def connections(server: Server) -> int:
    """Return how many clients a server has, who asks included and sentinels not."""
    clients = server.ask("CLIENT", "LIST", "TYPE", "normal").splitlines()
    return sum(
        " addr=" in client and " name=sentinel-" not in client for client in clients
    )


def keys_in(server: Server) -> Sequence[str]:
    """Return the keys that a server has."""
    return [
        word
        for word in server.ask("KEYS", "*").split("\r\n")
        if word.startswith("kvalet")
    ]
