"""A real engine that is killed: the agent notices a delay and nothing else."""

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

from kvalet import LlamaBackend, Runtime, Sampling, Session
from kvalet.scheduler import DecodeStarted, EngineRestarted, Event, Restored
from kvalet.state_store import MemoryStore

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXACT = Sampling(ignore_stop=True)
PROMPT = [number * 7 % 250 for number in range(60)]
NEXT = [number * 11 % 250 for number in range(20)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tiny_gguf: Path) -> AsyncGenerator[LlamaBackend, None]:
    """A real engine on a tiny model."""
    async with aclosing(
        await LlamaBackend.start(model_path=tiny_gguf, context_tokens=2048)
    ) as backend:
        yield backend


def kill(backend: LlamaBackend) -> None:
    """End the engine's process as an out-of-memory killer would."""
    for process in backend.process_ids():
        os.kill(process, signal.SIGKILL)


async def undisturbed(backend: LlamaBackend) -> list[tuple[int, ...]]:
    """Return what two turns say when nothing happens."""
    async with Runtime(backend, policy="keep") as runtime, runtime.session() as session:
        first = await session.turn(PROMPT, max_tokens=300, sampling=EXACT)
        second = await session.turn(NEXT, max_tokens=8, sampling=EXACT)
    return [first.token_ids, second.token_ids]


async def test_an_idle_engine_that_died_is_replaced(backend: LlamaBackend) -> None:
    """The next turn restarts it, restores what was parked, and says the same."""
    expected = await undisturbed(backend)
    events: list[Event] = []
    store = MemoryStore(None)
    async with (
        Runtime(
            backend, store=store, policy="park", observers=[events.append]
        ) as runtime,
        runtime.session() as session,
    ):
        first = await session.turn(PROMPT, max_tokens=300, sampling=EXACT)
        async with session.tool("Bash"):
            with anyio.fail_after(10):
                while (await store.stat()).states == 0:
                    await anyio.sleep(0)
            kill(backend)
        second = await session.turn(NEXT, max_tokens=8, sampling=EXACT)
        runtime.scheduler.check_integrity()

    assert [first.token_ids, second.token_ids] == expected
    assert [kind for kind in map(type, events) if kind is EngineRestarted]
    assert [kind for kind in map(type, events) if kind is Restored]


async def test_a_turn_goes_on_behind_what_it_has_said(backend: LlamaBackend) -> None:
    """An engine killed in the middle of an answer costs neither a token nor a turn."""
    expected = await undisturbed(backend)
    events: list[Event] = []
    said: list[int] = []
    async with (
        Runtime(backend, policy="park", observers=[events.append]) as runtime,
        runtime.session() as session,
    ):
        turn = session.turn(PROMPT, max_tokens=1500, sampling=EXACT)
        async with turn as chunks:
            async for chunk in chunks:
                said.extend(chunk.token_ids)
                if len(said) >= 5 and EngineRestarted not in map(type, events):
                    kill(backend)
        second = await session.turn(NEXT, max_tokens=8, sampling=EXACT)
        runtime.scheduler.check_integrity()

    assert turn.usage.output_tokens == len(said) == 1500
    assert sum(isinstance(event, EngineRestarted) for event in events) == 1
    # A resumed answer is prefilled in one batch where it was decoded token by token, so
    # later figures may differ in their last bits; what was said before may not.
    assert tuple(said[:5]) == expected[0][:5]
    assert len(second.token_ids) == 8


async def test_sessions_side_by_side_restart_it_once(backend: LlamaBackend) -> None:
    """All turns that were at work go on after a single restart."""
    events: list[Event] = []

    async def talk(session: Session) -> None:
        reply = await session.turn(PROMPT, max_tokens=1500, sampling=EXACT)
        assert len(reply.token_ids) == 1500

    def at_work() -> bool:
        return sum(isinstance(event, DecodeStarted) for event in events) == 2

    async with Runtime(backend, policy="park", observers=[events.append]) as runtime:
        async with anyio.create_task_group() as agents:
            for _ in range(3):
                agents.start_soon(talk, runtime.session())
            with anyio.fail_after(10):
                while not at_work():
                    await anyio.sleep(0)
            kill(backend)
        runtime.scheduler.check_integrity()

    assert sum(isinstance(event, EngineRestarted) for event in events) == 1
