"""Threads that end before their callers do."""

import asyncio
import threading
from pathlib import Path

import anyio
import pytest

from kvalet.backends.llama.threads import in_thread, removed

pytestmark = pytest.mark.asyncio


async def test_the_result_comes_back() -> None:
    """Arguments go in, the result or the error comes out."""
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_waits_for_its_thread(fails: bool) -> None:
    """The cancellation goes on only when the thread is done, whatever it did."""
    started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        may_end.wait(10)
        ended.set()
        if fails:
            raise RuntimeError("nobody hears this")

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(started.wait, 10)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=0.01)
    assert not done
    may_end.set()
    await asyncio.wait([task])
    assert task.cancelled() and ended.is_set()


async def test_a_cancelled_scope_waits_for_its_thread() -> None:
    """anyio's cancellation, which is delivered again and again, is no different."""
    ended = threading.Event()
    may_end = threading.Event()

    def work() -> None:
        may_end.wait(10)
        ended.set()

    asyncio.get_running_loop().call_later(0.02, may_end.set)
    with anyio.move_on_after(0.005) as scope:
        await in_thread(work)
    assert scope.cancelled_caught and ended.is_set()


async def test_removed_removes_in_any_case(tmp_path: Path) -> None:
    """A file that was never written is no error, a failure is passed on."""
    path = tmp_path / "state"
    async with removed(path):
        pass
    with pytest.raises(KeyError):
        async with removed(path):
            path.touch()
            raise KeyError
    assert not path.exists()
