"""The work on one slot, in the order in which plans named it.

A line is joined synchronously, while a plan is carried out, so the order of plans is
the order of work. Two kinds stand in it: *places*, held by turns that run in their
caller's task, and *jobs* (copies, restores, releases), which the slot's own worker
runs. Nothing is ever queued inside an engine.

Waiting is done on plain asyncio futures: half of what a replayed turn costs is waiting,
and an ``anyio.Event`` costs several times as much.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType

from .errors import SessionEnded

Job = Callable[[], Awaitable[None]]


class Place:
    """One place in a line; the body of ``async with`` runs when it is at the front."""

    __slots__ = ("_line", "_turn")

    def __init__(self, line: "SlotLine") -> None:
        self._line = line
        self._turn: asyncio.Future[None] | None = None

    def call(self) -> None:
        """Say that this place is at the front now."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def leave(self) -> None:
        """Give the place up; whoever is then at the front may go."""
        self._line.leave(self)

    async def __aenter__(self) -> None:
        if not self._line.is_front(self):
            self._turn = asyncio.get_running_loop().create_future()
            try:
                await self._turn
            except BaseException:
                self.leave()
                raise
        if self._line.closed:
            self.leave()
            raise SessionEnded("the runtime is closed")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()


class SlotLine:
    """First come, first served on one slot."""

    __slots__ = ("_bell", "_line", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._line: deque[Place | Job] = deque()
        self._bell: asyncio.Future[None] | None = None

    def join(self) -> Place:
        """Take a place at the end of the line."""
        place = Place(self)
        self._line.append(place)
        return place

    def post(self, job: Job) -> None:
        """Put a job at the end of the line."""
        self._line.append(job)
        if len(self._line) == 1:
            self._call_front()

    def close(self) -> None:
        """Do nothing more, and tell whoever still waits for the front."""
        self.closed = True
        for waiting in self._line:
            if isinstance(waiting, Place):
                waiting.call()

    def is_front(self, place: Place) -> bool:
        """Whether it is this place's turn."""
        return self._line[0] is place

    def leave(self, place: Place) -> None:
        """Take *place* out of the line, wherever it stands."""
        front = self._line[0] is place
        self._line.remove(place)
        if front:
            self._call_front()

    async def work(self) -> None:
        """Run the jobs of this line, one after the other, until cancelled."""
        line = self._line
        while True:
            if line and not isinstance(line[0], Place):
                await line[0]()
                line.popleft()
                self._call_front()
            else:
                self._bell = asyncio.get_running_loop().create_future()
                await self._bell

    def _call_front(self) -> None:
        if not self._line:
            return
        front = self._line[0]
        if isinstance(front, Place):
            front.call()
        elif self._bell is not None and not self._bell.done():
            self._bell.set_result(None)


class Grant:
    """What a turn waits for: its place on a slot, or the reason why it gets none."""

    __slots__ = ("_given", "_place", "_refusal", "_slot")

    def __init__(self) -> None:
        self._given: asyncio.Future[None] | None = None
        self._slot = -1
        self._place: Place | None = None
        self._refusal: Exception | None = None

    def give(self, slot: int, place: Place) -> None:
        """Let the turn run on *slot* when its *place* in line comes."""
        self._slot, self._place = slot, place
        self._tell()

    def refuse(self, error: Exception) -> None:
        """Let the turn fail with *error*."""
        self._refusal = error
        self._tell()

    async def wait(self) -> tuple[int, Place]:
        """Return slot and place, or raise the refusal."""
        if self._place is None and self._refusal is None:
            self._given = asyncio.get_running_loop().create_future()
            try:
                await self._given
            except BaseException:
                self.withdraw()
                raise
        if self._refusal is not None:
            raise self._refusal
        assert self._place is not None
        place, self._place = self._place, None
        return self._slot, place

    def withdraw(self) -> None:
        """Give back a place that nobody is going to use."""
        if self._place is not None:
            self._place.leave()
            self._place = None

    def _tell(self) -> None:
        if self._given is not None and not self._given.done():
            self._given.set_result(None)
