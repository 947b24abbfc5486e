"""Whether the server does its work, in what way it doesn't, and who finds out again."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic

from ..errors import StoreUnavailable
from .breaker import Breaker
from .faults import Consequence, Failure, read_fault

Probe = Callable[[], Awaitable[None]]
"""Tries the server, with a little write as well; raises one of ``Failure``."""


class Health:
    """Two breakers: one for the server, one for what it takes in.

    A full server can still be read, and what is dropped makes room in it. While one is
    open a task of this object probes; ``mended`` is called when all is well again.
    """

    def __init__(self, probe: Probe, mended: Callable[[], None]) -> None:
        self._probe = probe
        self._mended = mended
        self._server = Breaker()
        self._writes = Breaker()
        self._why = ""
        self._task: asyncio.Task[None] | None = None
        self.refused: Counter[str] = Counter()

    @property
    def available(self) -> bool:
        """Whether states can be parked and fetched."""
        return not self._server.is_open and not self._writes.is_open

    @property
    def reachable(self) -> bool:
        """Whether the server answers."""
        return not self._server.is_open

    def check(self, *, writes: bool) -> None:
        """Raise StoreUnavailable at once while the server is given up."""
        if self._server.is_open or (writes and self._writes.is_open):
            self.refused["given_up"] += 1
            raise StoreUnavailable(f"Redis is left alone for a while: {self._why}")

    def worked(self) -> None:
        """Take note that a call did its work."""
        self._server.worked()

    def failed(self, error: BaseException) -> StoreUnavailable:
        """Take note of a failure; return what the caller should raise."""
        fault = read_fault(error)
        self.refused[fault.reason] += 1
        self._why = f"{fault.reason} ({fault.text})"
        match fault.consequence:
            case Consequence.OPEN:
                self._server.failed(monotonic(), at_once=True)
            case Consequence.SLOW:
                self._server.failed(monotonic(), at_once=False)
            case Consequence.FULL:
                self._writes.failed(monotonic(), at_once=True)
            case Consequence.NONE:
                pass
        if not self.available and self._task is None:
            self._task = asyncio.create_task(self._mend(), name="redis-mend")
        return StoreUnavailable(f"Redis does not do its work: {self._why}")

    async def aclose(self) -> None:
        """Stop probing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _mend(self) -> None:
        while not self.available:
            breaker = self._server if self._server.is_open else self._writes
            await asyncio.sleep(breaker.wait_s(monotonic()))
            works = await self._works(full_is_well=breaker is self._server)
            breaker.probed(monotonic(), works=works)
        self._task = None
        self._mended()

    async def _works(self, *, full_is_well: bool) -> bool:
        try:
            await self._probe()
        except Failure as error:
            is_full = read_fault(error).consequence is Consequence.FULL
            return is_full and full_is_well
        return True
