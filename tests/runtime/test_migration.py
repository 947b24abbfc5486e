"""Real engines: a session's state goes from one to another, and no token changes."""

import os
import shutil
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from kvalet import LlamaBackend, Runtime, Sampling, Session
from kvalet.scheduler import CopyFound, Event, Restored
from kvalet.state_store import Inventory, MemoryStore
from kvalet.state_store.disk import DiskStore

pytestmark = pytest.mark.asyncio

EXACT = Sampling(ignore_stop=True)
PROMPTS = [[number * step % 250 for number in range(70)] for step in (7, 11, 13)]


@asynccontextmanager
async def engine(model: Path, slots: int = 1) -> AsyncGenerator[LlamaBackend, None]:
    """Yield an engine of its own process."""
    backend = await LlamaBackend.start(
        model_path=model, slots=slots, context_tokens=1024
    )
    async with aclosing(backend):
        yield backend


async def undisturbed(model: Path) -> list[tuple[int, ...]]:
    """Return what a session says when nothing happens to it."""
    async with (
        engine(model) as backend,
        Runtime(backend, policy="keep") as runtime,
        runtime.session() as session,
    ):
        return [await say(session, prompt) for prompt in PROMPTS]


async def say(session: Session, prompt: list[int]) -> tuple[int, ...]:
    """Return the tokens of an answer."""
    reply = await session.turn(prompt, max_tokens=9, sampling=EXACT)
    return reply.token_ids


async def parked(session: Session, store: Inventory) -> None:
    """Let a tool run until the session's state is in the store."""
    async with session.tool("Bash"):
        with anyio.fail_after(20):
            while (await store.stat()).states == 0:
                await anyio.sleep(0.01)


async def test_a_session_flees_an_engine_that_cannot_be_restarted(
    tiny_gguf: Path, tmp_path: Path
) -> None:
    """Its state is restored in another process with another number of slots."""
    expected = await undisturbed(tiny_gguf)
    lost = tmp_path / "lost.gguf"
    shutil.copy(tiny_gguf, lost)
    store, events = MemoryStore(None), list[Event]()
    async with (
        engine(lost) as first,
        engine(tiny_gguf, slots=3) as second,
        Runtime(
            [first, second], store=store, policy="park", observers=[events.append]
        ) as runtime,
        runtime.session("a") as session,
    ):
        said = [await say(session, PROMPTS[0])]
        await parked(session, store)
        lost.unlink()
        for process in first.process_ids():
            os.kill(process, signal.SIGKILL)
        said += [await say(session, prompt) for prompt in PROMPTS[1:]]
        assert runtime.schedulers[1].sessions == 1
        assert runtime.schedulers[0].sessions == 0
    assert said == expected
    [found] = [event for event in events if isinstance(event, CopyFound)]
    assert found.kv_tokens == 78
    assert [event.kv_tokens for event in events if isinstance(event, Restored)] == [78]


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_session_survives_the_restart_of_everything(
    tiny_gguf: Path, tmp_path: Path, slots: int
) -> None:
    """Runtime, store and engine end; the next ones go on from what is on disk."""
    expected = await undisturbed(tiny_gguf)
    said: list[tuple[int, ...]] = []
    history: list[int] = []
    for number, prompt in enumerate(PROMPTS):
        async with (
            engine(tiny_gguf, slots=1 if number % 2 else slots) as backend,
            aclosing(await DiskStore.open(tmp_path / "store")) as store,
            Runtime(backend, store=store, policy="keep", persists=True) as runtime,
        ):
            session = runtime.session("a")
            history += prompt
            reply = await session.turn(history, max_tokens=9, sampling=EXACT)
            # All but the last sampled token has been through the model.
            assert reply.usage.reused_tokens == max(0, len(history) - len(prompt) - 1)
            said.append(reply.token_ids)
            history += reply.token_ids
    assert said == expected
