"""Blocking work in a thread, with an end that can be relied on.

A thread cannot be cancelled. Left alone it would still write a file after its folder
was cleaned up, so a cancelled caller waits for its thread before the cancellation goes
on. The work is bounded: reading, writing or hashing one file.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


async def in_thread(call: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
    """Run *call* in a thread; when cancelled, return only after it has ended."""
    work = asyncio.ensure_future(anyio.to_thread.run_sync(call, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # seen, and of no interest any more
        raise


@asynccontextmanager
async def removed(path: Path) -> AsyncGenerator[None, None]:
    """See to it that no file lies at *path* afterwards."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(_unlink, path)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
