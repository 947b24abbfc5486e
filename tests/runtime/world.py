"""A runtime in virtual time with everything that a test looks at, and a last check.

Leaving ``open_world`` without an error means: every session that was opened is closed,
no KV token is reserved, nothing is parked, the books balance.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import anyio

from kvalet.runtime.client import Session
from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.runtime import Runtime
from kvalet.runtime.turn import Reply
from kvalet.scheduler import Event, Policy, Residency, SchedulerSettings, SessionId
from kvalet.scheduler import Session as Lane
from kvalet.state_store import MemoryStore

from .backends import RoundBackend

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=Event)


def virtual(
    test: Callable[Parameters, Coroutine[Any, Any, None]],
) -> Callable[Parameters, None]:
    """Run an async test to its end in virtual time."""

    @functools.wraps(test)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run


@dataclass
class World:
    """A runtime, what is below it, and what has happened in it."""

    runtime: Runtime
    backend: RoundBackend
    store: MemoryStore
    events: list[Event]
    opened: list[Session] = field(default_factory=list[Session])
    background: "asyncio.Task[Reply] | None" = None

    def session(self, id: str) -> Session:
        """Open a session."""
        session = self.runtime.session(id)
        self.opened.append(session)
        return session

    def lane(self, id: str) -> Lane:
        """Return what the scheduler knows of a session."""
        return self.runtime.scheduler.session(SessionId(id))

    def residency(self, id: str) -> Residency:
        """Return where a session's state is."""
        return self.lane(id).residency

    def heard(self, kind: type[Kind], session: str | None = None) -> list[Kind]:
        """Return the events of one kind, of one session if named."""
        return [
            event
            for event in self.events
            if isinstance(event, kind) and session in (None, event.session)
        ]

    async def rest(self) -> None:
        """Let everything that moves come to its end, and check the books."""
        await anyio.sleep(1000)
        self.runtime.scheduler.check_integrity()

    async def stored_bytes(self) -> int:
        """Return how much is parked."""
        return (await self.store.stat()).stored_bytes

    async def close_sessions(self) -> None:
        """Close what is open and see that nothing is left of it."""
        for session in self.opened:
            await session.aclose()
        await self.rest()
        scheduler = self.runtime.scheduler
        assert (scheduler.sessions, scheduler.reserved_tokens) == (0, 0)
        assert scheduler.queued_turns == 0
        assert await self.stored_bytes() == 0
        assert set(self.backend.held_tokens) == {0}


@asynccontextmanager
async def open_world(
    policy: str | Policy = "park",
    *,
    backend: RoundBackend | None = None,
    store: MemoryStore | None = None,
    settings: SchedulerSettings | None = None,
) -> AsyncGenerator[World, None]:
    """Yield a world; check at the end that nothing is left in it."""
    backend = backend or RoundBackend()
    store = store or MemoryStore(None)
    events: list[Event] = []

    def hear(event: Event) -> None:
        events.append(event)

    async with Runtime(
        backend, store=store, policy=policy, settings=settings, observers=[hear]
    ) as runtime:
        world = World(runtime, backend, store, events)
        yield world
        await world.close_sessions()


async def ask(
    session: Session,
    new_tokens: int = 10,
    max_tokens: int = 5,
    keep_tokens: int | None = None,
) -> Reply:
    """Run one turn; its tokens depend on nothing but their number."""
    prompt = [1] * new_tokens
    return await session.turn(prompt, max_tokens=max_tokens, keep_tokens=keep_tokens)


async def use_tool(session: Session, seconds: float, name: str = "Bash") -> None:
    """Let a tool of the session take so many seconds."""
    async with session.tool(name):
        await anyio.sleep(seconds)


class CancelAt:
    """Awaits a coroutine and asks for its cancellation at its n-th suspension.

    ``suspensions`` says how often it was suspended, so that a caller can go through all
    of them.
    """

    def __init__(self, inner: Coroutine[Any, Any, Result], at: int | None) -> None:
        self._inner = inner
        self._at = at
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._inner.__await__()
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                waited = steps.send(sent) if thrown is None else steps.throw(thrown)
            except StopIteration as stop:
                return stop.value
            self.suspensions += 1
            if self.suspensions == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            sent, thrown = None, None
            try:
                sent = yield waited
            except BaseException as error:
                thrown = error
