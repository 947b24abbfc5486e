"""Through the whole runtime, on a real engine: parking changes no token."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from kvalet import LlamaBackend, Runtime, Sampling
from kvalet.scheduler import Event, Restored, RestoreStarted

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXACT = Sampling(ignore_stop=True)
TURNS = 5


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(model_path: Path) -> AsyncGenerator[LlamaBackend, None]:
    """A real engine with one slot, on a tiny and on the default model."""
    async with aclosing(
        await LlamaBackend.start(model_path=model_path, slots=1, context_tokens=1024)
    ) as backend:
        yield backend


async def talk(
    backend: LlamaBackend, policy: str, cut_tokens: int, events: list[Event]
) -> list[tuple[int, ...]]:
    """Return what a session says while another one takes the only slot in between."""
    said: list[tuple[int, ...]] = []
    async with (
        Runtime(backend, policy=policy, observers=[events.append]) as runtime,
        runtime.session("a") as session,
        runtime.session("b") as other,
    ):
        for number in range(TURNS):
            keep = max(0, session.context_tokens - cut_tokens)
            prompt = [(number * 31 + token * 7) % 200 + 20 for token in range(24)]
            reply = await session.turn(
                prompt, max_tokens=6, sampling=EXACT, keep_tokens=keep
            )
            said.append(reply.token_ids)
            if policy == "park":
                async with session.tool("Bash"):
                    await other.turn(prompt[::-1], max_tokens=2, sampling=EXACT)
        runtime.scheduler.check_integrity()
    return said


@pytest.mark.parametrize("cut_tokens", [0, 3, 9])
async def test_parking_changes_no_token(backend: LlamaBackend, cut_tokens: int) -> None:
    """Parked and restored between all turns, edited or not, it says the same."""
    quiet: list[Event] = []
    expected = await talk(backend, "keep", cut_tokens, quiet)
    moved: list[Event] = []
    assert expected == await talk(backend, "park", cut_tokens, moved)

    restored = [event for event in moved if isinstance(event, Restored)]
    assert sum(event.session == "a" for event in restored) == TURNS - 1
    assert not [event for event in quiet if isinstance(event, Restored)]


async def test_a_fork_changes_no_token(backend: LlamaBackend) -> None:
    """Restored from its parent's copy, it says what the parent says to the same."""
    first, second = (
        [(number * 31 + token * 7) % 200 + 20 for token in range(24)]
        for number in range(2)
    )
    async with (
        Runtime(backend, policy="keep") as runtime,
        runtime.session() as session,
    ):
        await session.turn(first, max_tokens=6, sampling=EXACT)
        expected = await session.turn(second, max_tokens=6, sampling=EXACT)

    moved: list[Event] = []
    async with (
        Runtime(backend, policy="park", observers=[moved.append]) as runtime,
        runtime.session("a") as session,
    ):
        await session.turn(first, max_tokens=6, sampling=EXACT)
        async with session.tool("Task"):
            for _ in range(2):
                async with session.fork() as fork:
                    said = await fork.turn(second, max_tokens=6, sampling=EXACT)
                    assert said.token_ids == expected.token_ids
                    assert said.usage.reused_tokens == expected.usage.reused_tokens
        said = await session.turn(second, max_tokens=6, sampling=EXACT)
        assert said.token_ids == expected.token_ids
    sources = [event.source for event in moved if isinstance(event, RestoreStarted)]
    assert sources == ["a", "a", None]
    assert sum(isinstance(event, Restored) for event in moved) == 3
