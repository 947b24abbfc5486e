"""Moves many chunks over several connections, in threads of our own.

Each thread takes the next chunk when it is done with one, so there is one command at a
time on each connection and as many at once as there are connections. When the caller is
cancelled, or a chunk fails, chunks on their way get a moment to arrive, so that the
server is not left with commands that it does later; then their connections are cut:
nobody waits for a server that hangs.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from ..finish import to_its_end
from .address import HostPort
from .faults import ServerReply
from .lane import Endpoint, Lane

Where = HostPort | str
T = TypeVar("T")

# So many chunks are moved before another call's may have their turn.
_IN_A_ROW: Final = 16
_MOMENT_S: Final = 0.05


class Job(Protocol):
    """What is to be done with one key."""

    @property
    def key(self) -> str:
        """Which key; in a cluster it says which server."""
        ...

    def run(self, lane: Lane) -> None:
        """Do it, in a thread; may be done again."""
        ...


class Lanes:
    """Connections for chunks, opened as they are needed, ``connections`` at once."""

    def __init__(self, endpoint: Endpoint, connections: int) -> None:
        self._endpoint = endpoint
        self._connections = connections
        self._idle: defaultdict[Where, list[Lane]] = defaultdict(list)
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="redis")
        self._calls: set[_Call] = set()
        self._closed = False

    async def carry(self, jobs: Iterable[tuple[Where, Job]]) -> None:
        """Do every job; raise what the first to fail raised."""
        queues: defaultdict[Where, deque[Job]] = defaultdict(deque)
        for where, job in jobs:
            queues[where].append(job)
        call = _Call()
        self._calls.add(call)
        try:
            async with asyncio.TaskGroup() as workers:
                for where, queue in queues.items():
                    for _ in range(min(self._connections, len(queue))):
                        workers.create_task(self._work(call, where, queue))
        except BaseExceptionGroup as group:
            raise _first(group) from None
        finally:
            self._calls.discard(call)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run what takes long and needs no connection."""
        return await asyncio.wrap_future(self._threads.submit(function))

    def forget(self) -> None:
        """Close the idle connections: the server may be another one now."""
        for lanes in list(self._idle.values()):
            while lanes:
                lanes.pop().close()

    def close(self) -> None:
        """Cut whatever is in use and close the rest."""
        self._closed = True
        for call in list(self._calls):
            call.cut()
        self.forget()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self, call: "_Call", where: Where, queue: deque[Job]) -> None:
        while queue:
            if self._closed or call.stopped:
                raise ConnectionError("the store is closed")
            future = self._threads.submit(self._some, call, where, queue)

            def hurry(future: Future[None] = future) -> None:
                call.stopped = True
                future.cancel()
                asyncio.get_running_loop().call_later(_MOMENT_S, call.cut)

            await to_its_end(_end_of(future), hurry=hurry)

    def _some(self, call: "_Call", where: Where, queue: deque[Job]) -> None:
        """Do a few jobs; runs in a thread."""
        if call.stopped or not queue:
            return
        lane, is_new = self._take(call, where)
        try:
            for _ in range(_IN_A_ROW):
                if call.stopped:
                    break
                try:
                    job = queue.popleft()
                except IndexError:
                    break
                try:
                    self._run(call, lane, job)
                except ConnectionError:
                    # An idle connection may have been closed by the server meanwhile.
                    if is_new or call.stopped:
                        raise
                    call.lanes.discard(lane)
                    lane.close()
                    lane, is_new = self._open(call, where), True
                    self._run(call, lane, job)
                is_new = True
        except ServerReply:
            self._give_back(call, where, lane)
            raise
        except BaseException:
            call.lanes.discard(lane)
            lane.close()
            raise
        self._give_back(call, where, lane)

    def _run(self, call: "_Call", lane: Lane, job: Job) -> None:
        try:
            job.run(lane)
        except ServerReply as reply:
            moved = _moved_to(str(reply))
            if moved is None:
                raise
            other = self._open(call, moved)
            try:
                if str(reply).startswith("ASK "):
                    other.ask("ASKING")
                job.run(other)
            finally:
                call.lanes.discard(other)
                other.close()

    def _take(self, call: "_Call", where: Where) -> tuple[Lane, bool]:
        try:
            lane = self._idle[where].pop()
        except IndexError:
            return self._open(call, where), True
        call.lanes.add(lane)
        return lane, False

    def _open(self, call: "_Call", where: Where) -> Lane:
        lane = Lane.open(replace(self._endpoint, where=where))
        call.lanes.add(lane)
        if call.was_cut:
            lane.abort()
        return lane

    def _give_back(self, call: "_Call", where: Where, lane: Lane) -> None:
        call.lanes.discard(lane)
        if call.was_cut or len(self._idle[where]) >= self._connections:
            lane.close()
        else:
            self._idle[where].append(lane)


async def _end_of(future: Future[None]) -> None:
    await asyncio.wrap_future(future)


class _Call:
    """One call's connections in use, so that it can be stopped."""

    def __init__(self) -> None:
        self.stopped = False
        self.was_cut = False
        self.lanes: set[Lane] = set()

    def cut(self) -> None:
        self.stopped = self.was_cut = True
        for lane in self.lanes.copy():
            lane.abort()


def _moved_to(reply: str) -> HostPort | None:
    words = reply.split()
    if len(words) < 3 or words[0] not in ("MOVED", "ASK"):
        return None
    host, _, port = words[2].rpartition(":")
    return (host, int(port)) if host and port.isdecimal() else None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group.exceptions[0]
    return error
