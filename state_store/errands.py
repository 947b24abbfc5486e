"""Tasks of a store's own: what was begun is finished, whoever stops waiting for it."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from .errors import StoreUnavailable

Result = TypeVar("Result")


class Errands:
    """Starts tasks and holds them until they are done; keeps those of a key apart.

    It may be made before any loop runs.
    """

    def __init__(self) -> None:
        self.closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start *work*; raise StoreUnavailable once the store is closed."""
        if self.closed:
            work.close()
            raise StoreUnavailable("the store is closed")
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def alone(self, key: str) -> asyncio.Lock:
        """Return the lock that only one errand of the key can hold."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def wait(self) -> None:
        """Wait until what was begun is done."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def cancel(self) -> None:
        """Stop everything."""
        self.closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Whoever waits for it raises its error; there may be nobody.
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()
