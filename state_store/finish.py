"""Work that is brought to its end even if the caller is cancelled meanwhile.

A thread can't be stopped from outside. Whoever goes on while one still changes files or
books can't say any more how things stand; so the caller waits, then is cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import anyio

Result = TypeVar("Result")


def _ignore() -> None: ...


async def to_its_end(
    work: Coroutine[Any, Any, Result],
    *,
    hurry: Callable[[], None] = _ignore,
    unseen: Callable[[Result], object] | None = None,
) -> Result:
    """Return what *work* returns.

    If the caller is cancelled, *hurry* is called, *work* runs on to its end, and what
    it returns goes to *unseen*, because nobody else will see it.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        hurry()
        with anyio.CancelScope(shield=True):
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((task,))
        # Asked for in any case: asyncio complains of errors that nobody looks at.
        if not task.cancelled() and task.exception() is None and unseen:
            unseen(task.result())
        raise
