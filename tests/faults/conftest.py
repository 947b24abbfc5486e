"""An engine that the tests of a file share, and what it says in peace."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest_asyncio

from kvalet import LlamaBackend

from .stage import Tokens, undisturbed


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tiny_gguf: Path) -> AsyncGenerator[LlamaBackend, None]:
    """A real engine with one slot."""
    async with aclosing(
        await LlamaBackend.start(model_path=tiny_gguf, slots=1, context_tokens=2048)
    ) as backend:
        yield backend


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(backend: LlamaBackend) -> list[Tokens]:
    """What a session says in peace."""
    return await undisturbed(backend)
