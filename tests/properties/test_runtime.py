"""Random agents on random accelerators: every turn ends and nothing is left behind."""

from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st

from kvalet.backends import BackendError
from kvalet.runtime.client import Session
from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.errors import TurnRefused
from kvalet.scheduler import (
    DecodeDone,
    Event,
    PrefillDone,
    PrefillStarted,
    SchedulerSettings,
    TurnAborted,
    TurnRejected,
    TurnSubmitted,
)
from kvalet.state_store import MemoryStore
from tests.runtime.backends import (
    DyingEngine,
    FailingExports,
    RefusedImports,
    RoundBackend,
    SilentImports,
    Stream,
)
from tests.runtime.world import World, ask, open_world, use_tool

CONTEXT_TOKENS = 300
NEVER_S = 1e6


@dataclass(frozen=True)
class Say:
    """A turn; ``keep`` is the share of the history that stays."""

    new_tokens: int
    max_tokens: int
    keep: float = 1.0
    deadline_s: float = NEVER_S


@dataclass(frozen=True)
class Use:
    """Tools side by side."""

    seconds: tuple[float, ...]
    deadline_s: float = NEVER_S


@dataclass(frozen=True)
class Think:
    """A user's wait."""

    seconds: float


@dataclass(frozen=True)
class Delegate:
    """A subagent that begins as its parent, in a tool call or beside it."""

    acts: tuple[Say | Use | Think, ...]
    seconds: float
    joined: bool


@dataclass(frozen=True)
class SayTwice:
    """Two turns in flight; the second one comes a while after the first."""

    first: Say
    second: Say
    after_s: float


Act = Say | Use | Think | Delegate | SayTwice

times = st.sampled_from([0.0, 0.01, 0.1, 0.4, 0.5, 1.0, 1.7, 3.0, 20.0])
deadlines = st.one_of(st.just(NEVER_S), times)
tokens = st.integers(1, 60)
says = st.one_of(
    st.builds(Say, tokens, st.integers(1, 8), st.just(1.0), deadlines),
    st.builds(Say, tokens, st.integers(1, 8), st.floats(0, 1)),
)
simple_acts = st.one_of(
    says,
    st.builds(Use, st.lists(times, min_size=1, max_size=3).map(tuple), deadlines),
    st.builds(Think, times),
)
acts = st.one_of(
    simple_acts,
    st.builds(
        Delegate, st.lists(simple_acts, max_size=4).map(tuple), times, st.booleans()
    ),
    st.builds(SayTwice, says, says, times),
)
lives = st.lists(acts, max_size=8)
policies = st.sampled_from(["auto", "keep", "drop", "park", "hold:0.5", "hold:2"])
backends = st.sampled_from(
    [RoundBackend, Stream, FailingExports, RefusedImports, SilentImports]
)


class Agent:
    """Lives a list of acts, and knows how long its conversation has to be."""

    def __init__(
        self, world: World, session: Session, acts: Sequence[Act], history_tokens: int
    ) -> None:
        self.world = world
        self.session = session
        self.acts = acts
        self.history_tokens = history_tokens
        self.busy = False

    async def live(self) -> None:
        async with anyio.create_task_group() as tasks:
            for act in self.acts:
                match act:
                    case Say():
                        await self._say(act)
                    case Use():
                        with anyio.move_on_after(act.deadline_s):
                            await self._use(act)
                    case Think():
                        await anyio.sleep(act.seconds)
                    case SayTwice():
                        await self._say_twice(act)
                    case Delegate():
                        await self._delegate(act, tasks)
                self.world.runtime.scheduler.check_integrity()
            await self.session.aclose()

    async def _say(self, act: Say) -> None:
        """Run a turn; the conversation follows it unless another is in progress."""
        keep = int(act.keep * self.history_tokens)
        expected = keep + act.new_tokens
        follows, self.busy = not self.busy, True
        try:
            with anyio.move_on_after(act.deadline_s):
                reply = await ask(self.session, act.new_tokens, act.max_tokens, keep)
                assert reply.usage.prompt_tokens == expected
                assert len(reply.token_ids) == act.max_tokens
                if follows:
                    self.history_tokens = expected + act.max_tokens
        except TurnRefused:
            assert expected + act.max_tokens > CONTEXT_TOKENS
        except BackendError:
            pass
        finally:
            if follows:
                self.busy = False
        assert self.session.context_tokens == self.history_tokens

    async def _say_twice(self, act: SayTwice) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._say, act.first)
            await anyio.sleep(act.after_s)
            await self._say(act.second)

    async def _use(self, act: Use) -> None:
        async with anyio.create_task_group() as tasks:
            for seconds in act.seconds:
                tasks.start_soon(use_tool, self.session, seconds)

    async def _delegate(self, act: Delegate, tasks: TaskGroup) -> None:
        session = self.session.fork(blocking=act.joined)
        subagent = Agent(self.world, session, act.acts, self.history_tokens)
        if not act.joined:
            tasks.start_soon(subagent.live)
            return
        async with self.session.tool("Task"):
            await anyio.sleep(act.seconds)
            await subagent.live()


@given(
    everyone=st.lists(lives, min_size=1, max_size=5),
    policy=policies,
    make=backends,
    slots=st.integers(1, 3),
    contexts=st.sampled_from([1.0, 1.3, 2.0, 3.0]),
    store_bytes=st.sampled_from([None, 500, 2000]),
    max_prefills=st.integers(1, 2),
    age_bound_s=st.sampled_from([0.0, 1.0, 60.0]),
)
@settings(max_examples=250, deadline=None)
def test_every_turn_ends_and_nothing_is_left(
    everyone: list[list[Act]],
    policy: str,
    make: type[RoundBackend],
    slots: int,
    contexts: float,
    store_bytes: int | None,
    max_prefills: int,
    age_bound_s: float,
) -> None:
    """No deadlock, no wrong count, books that balance, an empty store at the end."""

    async def main() -> list[Event]:
        backend = make(
            slots=slots,
            kv_tokens=int(contexts * CONTEXT_TOKENS),
            context_tokens=CONTEXT_TOKENS,
        )
        async with open_world(
            policy,
            backend=backend,
            store=MemoryStore(store_bytes),
            settings=SchedulerSettings(
                max_prefills=max_prefills, age_bound_s=age_bound_s
            ),
        ) as world:
            agents = [
                Agent(world, world.session(f"agent {number}"), acts, 0)
                for number, acts in enumerate(everyone)
            ]
            async with anyio.create_task_group() as tasks:
                for agent in agents:
                    tasks.start_soon(agent.live)
            await world.rest()
            scheduler = world.runtime.scheduler
            assert (scheduler.sessions, scheduler.reserved_tokens) == (0, 0)
            assert await world.stored_bytes() == 0
        return world.events

    events = run_in_virtual_time(main())
    _check_prefills(events, max_prefills)
    if not _cancels_side_by_side(everyone):
        assert run_in_virtual_time(main()) == events


def _cancels_side_by_side(everyone: list[list[Act]]) -> bool:
    """Tell whether tools are cancelled together, in which anyio keeps no order."""
    every_act = [act for acts in everyone for act in acts]
    for act in every_act:
        if isinstance(act, Delegate):
            every_act.extend(act.acts)
    return any(
        isinstance(act, Use) and len(act.seconds) > 1 and act.deadline_s < NEVER_S
        for act in every_act
    )


def _check_prefills(events: list[Event], max_prefills: int) -> None:
    """At most so many prefills ran at once, and every turn has one end."""
    running, open_turns = set[str](), set[str]()
    for event in events:
        if isinstance(event, TurnSubmitted):
            assert event.session not in open_turns
            open_turns.add(event.session)
        elif isinstance(event, PrefillStarted):
            running.add(event.session)
            assert len(running) <= max_prefills
        elif isinstance(event, PrefillDone):
            running.discard(event.session)
        elif isinstance(event, TurnAborted | TurnRejected):
            running.discard(event.session)
            open_turns.discard(event.session)
        elif isinstance(event, DecodeDone):
            open_turns.discard(event.session)
    assert not running and not open_turns


@given(lives=st.lists(lives, min_size=2, max_size=4), deaths=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_an_engine_that_dies_now_and_then(lives: list[list[Act]], deaths: int) -> None:
    """Each death costs its own turn, and no other."""

    async def main() -> None:
        backend = DyingEngine(slots=2)
        backend.deaths = deaths
        async with open_world("park", backend=backend) as world:
            async with anyio.create_task_group() as tasks:
                for number, acts in enumerate(lives):
                    session = world.session(f"agent {number}")
                    tasks.start_soon(Agent(world, session, acts, 0).live)
            lost = [
                event
                for event in world.heard(TurnAborted)
                if event.reason.startswith("EngineLost")
            ]
            assert len(lost) <= deaths

    run_in_virtual_time(main())
