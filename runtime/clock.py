"""Time, as the runtime needs it: what time it is, and a call at a later time.

``VirtualTimeLoop`` is an asyncio loop whose time jumps to the next timer instead of
passing. The runtime, its clients and the simulated backend run on it unchanged, so
tests and replays never sleep. Real I/O that is ready is served before each jump; nobody
waits for it, so a loop that only waits for a socket or a thread counts as deadlocked.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Make it not happen."""
        ...


class Clock(Protocol):
    """Seconds on a clock that never goes back."""

    def now_s(self) -> float:
        """Return the time."""
        ...

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* at *when_s*, or at once if that has passed."""
        ...


class LoopClock:
    """The clock of the running asyncio loop, real or virtual."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now_s: Callable[[], float] = self._loop.time

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* at *when_s*."""
        return self._loop.call_at(when_s, callback)


class _JumpingSelector(selectors.BaseSelector):
    """Polls real I/O; when there is none, jumps to the loop's next timer."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now_s = 0.0

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            # Tasks are ready; I/O can wait for the next jump. A poll costs more
            # than a task step, and most steps lead to another one.
            return []
        events = self._real.select(0)
        if not events:
            if timeout is None:
                raise RuntimeError("every task is waiting and no timer is set")
            self.now_s += timeout
        return events

    def register(
        self, fileobj: Any, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that jumps from timer to timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # asyncio adds this to the time when it looks for due timers. Its own value is
        # less than what a float can tell apart after half a year of virtual time, and
        # a timer that never becomes due would spin for ever.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._jumping.now_s


def run_in_virtual_time(main: Coroutine[Any, Any, Result]) -> Result:
    """Run *main* to its end on a fresh ``VirtualTimeLoop``."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
