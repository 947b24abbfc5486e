"""Calls that nobody waits for longer than they are worth.

Whoever is cancelled tidies up first, and may need its time for that: a store that gets
no answer learns so by a timeout of its own. So a call that is late is cancelled, and
left to itself.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Calls:
    """Makes calls in tasks of their own, and keeps those that were left until done."""

    def __init__(self) -> None:
        self._left: set[asyncio.Task[Any]] = set()

    async def within(self, limit_s: float, call: Coroutine[Any, Any, T]) -> T:
        """Return what *call* returns; raise TimeoutError if it takes longer."""
        task = asyncio.create_task(call)
        try:
            await asyncio.wait([task], timeout=limit_s)
        finally:
            if not task.done():
                self._leave(task)
        if not task.done():
            raise TimeoutError(f"not done within {limit_s:.3g} s")
        return task.result()

    async def end(self) -> None:
        """Wait for those that were left."""
        while self._left:
            await asyncio.wait(self._left)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._left.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            # Looked at by nobody else, and asyncio would complain of that.
            task.exception()
