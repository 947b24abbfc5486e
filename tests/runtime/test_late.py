"""Calls that take too long are cancelled, and nobody waits for how that ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.late import Calls


class Slow:
    """Takes a second; if it is cancelled meanwhile, it tidies up for five more."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.tidied_at_s: float | None = None

    async def call(self) -> str:
        """Do it."""
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
            self.tidied_at_s = now_s()
            raise self.error or asyncio.CancelledError() from None
        if self.error is not None:
            raise self.error
        return "done"


def now_s() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a test in virtual time."""
    run_in_virtual_time(main)


def test_what_is_in_time_is_returned_or_raised() -> None:
    """As if it had been awaited."""

    async def main() -> None:
        calls = Calls()
        assert await calls.within(2, Slow().call()) == "done"
        with pytest.raises(OSError, match="broken"):
            await calls.within(2, Slow(OSError("broken")).call())
        await calls.end()
        assert now_s() == 2

    run(main())


@pytest.mark.parametrize("error", [None, OSError("broken")])
def test_who_is_late_is_left(error: Exception | None) -> None:
    """The caller goes on at once; the end waits, and nobody hears of the error."""

    async def main() -> None:
        calls, slow = Calls(), Slow(error)
        with pytest.raises(TimeoutError, match=r"0\.5 s"):
            await calls.within(0.5, slow.call())
        assert (now_s(), slow.tidied_at_s) == (0.5, None)
        await calls.end()
        assert slow.tidied_at_s == 5.5

    run(main())


def test_a_caller_who_is_cancelled_leaves_it_too() -> None:
    """The call is cancelled as well."""

    async def main() -> None:
        calls, slow = Calls(), Slow()
        waiting = asyncio.create_task(calls.within(9, slow.call()))
        await asyncio.sleep(0.25)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() and now_s() == 0.25
        await calls.end()
        assert slow.tidied_at_s == 5.25

    run(main())
