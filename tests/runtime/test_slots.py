"""The line of one slot: first come, first served, whatever leaves it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from kvalet.runtime.slots import SlotLine

from .world import virtual


class Diary:
    """A line with its worker, and what was done in it, in order."""

    def __init__(self, line: SlotLine) -> None:
        self.line = line
        self.done: list[str] = []

    def job(self, name: str, seconds: float = 1.0) -> Callable[[], Awaitable[None]]:
        """Return a job that takes a while and writes its name down."""

        async def work() -> None:
            await anyio.sleep(seconds)
            self.done.append(name)

        return work

    def hold(self, name: str, seconds: float = 1.0) -> "asyncio.Task[None]":
        """Join now, and hold the place for a while once it is at the front."""
        place = self.line.join()

        async def work() -> None:
            async with place:
                await anyio.sleep(seconds)
                self.done.append(name)

        return asyncio.create_task(work())


@asynccontextmanager
async def open_line() -> AsyncGenerator[Diary, None]:
    """Yield a line whose worker runs."""
    diary = Diary(SlotLine())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(diary.line.work)
        yield diary
        tasks.cancel_scope.cancel()


@virtual
async def test_jobs_and_places_keep_their_order() -> None:
    """Work is done in the order of joining, whoever does it, one at a time."""
    async with open_line() as diary:
        diary.line.post(diary.job("one"))
        two = diary.hold("two")
        diary.line.post(diary.job("three"))
        four, five = diary.hold("four"), diary.hold("five")
        await asyncio.wait([two, four, five])
        assert diary.done == ["one", "two", "three", "four", "five"]
        assert anyio.current_time() == 5


@virtual
async def test_a_line_rests_and_goes_on() -> None:
    """An empty line waits without a timer; the next job wakes its worker."""
    async with open_line() as diary:
        await anyio.sleep(10)
        diary.line.post(diary.job("one"))
        await anyio.sleep(10)
        diary.line.post(diary.job("two"))
        await anyio.sleep(10)
        assert diary.done == ["one", "two"]


@virtual
async def test_a_place_at_the_front_needs_no_call() -> None:
    """Who joins an empty line may go at once, before the worker has run."""
    async with open_line() as diary:
        place = diary.line.join()
        assert diary.line.is_front(place)
        async with place:
            assert anyio.current_time() == 0


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
@virtual
async def test_a_cancelled_place_makes_room(victim: int, rounds: int) -> None:
    """At the front or further back, before it waits or while: the others go on."""
    async with open_line() as diary:
        names = ["a", "b", "c"]
        holders = [diary.hold(name) for name in names]
        diary.line.post(diary.job("job"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        if rounds == 0:  # a task that never ran never entered its place
            await asyncio.sleep(0)
        holders[victim].cancel()
        await asyncio.wait(holders)
        await anyio.sleep(5)
        left = [name for number, name in enumerate(names) if number != victim]
        assert diary.done == [*left, "job"]


@virtual
async def test_a_place_given_up_unused_makes_room() -> None:
    """leave() without ever entering lets the next one go, job or place."""
    async with open_line() as diary:
        first, second = diary.line.join(), diary.line.join()
        diary.line.post(diary.job("job"))
        second.leave()
        assert diary.line.is_front(first)
        first.leave()
        await anyio.sleep(5)
        assert diary.done == ["job"]


@virtual
async def test_an_error_inside_a_place_makes_room() -> None:
    """The line does not care why a place is left."""
    async with open_line() as diary:
        with pytest.raises(ValueError, match="mine"):
            async with diary.line.join():
                diary.line.post(diary.job("job"))
                raise ValueError("mine")
        await anyio.sleep(5)
        assert diary.done == ["job"]


@virtual
async def test_a_job_may_post_the_next_one() -> None:
    """A job that adds to its own line is not in its own way."""
    async with open_line() as diary:

        async def work() -> None:
            diary.line.post(diary.job("second"))
            await anyio.sleep(1)
            diary.done.append("first")

        diary.line.post(work)
        await anyio.sleep(5)
        assert diary.done == ["first", "second"]
