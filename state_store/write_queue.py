"""What a tier has yet to be told: one job per key, in order, bounded in bytes.

Only payload counts: a job without it takes next to nothing. A job that lets go of its
payload stays queued, and is read from a faster tier when it is its turn.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, unique

from .state import KVState, Manifest


@unique
class Act(Enum):
    """What is to be done with a key."""

    WRITE = "write"  # the newest state
    DROP = "drop"
    LOOK = "look"  # see what the tier has


@dataclass(slots=True, eq=False)
class Job:
    """Something to do at the tier, with a key.

    To be written is the state of ``manifest``. ``pieces`` are all of its payloads, or
    the last ones; None: to be read elsewhere.
    """

    act: Act
    key: str
    manifest: Manifest | None = None
    pieces: KVState | None = None
    attempts: int = 0
    waiting: list[asyncio.Future[bool]] = field(
        default_factory=list[asyncio.Future[bool]]
    )

    @property
    def nbytes(self) -> int:
        """Length of the payloads."""
        return sum(map(len, self.pieces.payloads)) if self.pieces else 0

    def answer(self, done: bool) -> None:
        """Tell who waits whether the tier holds it now."""
        for future in self.waiting:
            if not future.done():
                future.set_result(done)
        self.waiting.clear()

    def take_over(self, older: "Job") -> None:
        """Take along who waits for *older*, and its pieces if these continue them."""
        self.waiting += older.waiting
        older.waiting = []
        if (
            self.pieces is not None
            and older.pieces is not None
            and self.pieces.manifest.continues(older.pieces.manifest)
        ):
            self.pieces = self.pieces.behind(older.pieces)


class WriteQueue:
    """Jobs by key, the oldest first.

    ``nbytes`` are their payloads together. ``others`` are the jobs that write nothing.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self.nbytes = 0
        self.others = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def keys(self) -> list[str]:
        """Return the keys, the oldest first."""
        return list(self._jobs)

    def get(self, key: str) -> Job | None:
        """Return the key's job."""
        return self._jobs.get(key)

    def put(self, job: Job) -> None:
        """Queue *job*; it takes over from the key's older one, and takes its place."""
        older = self._jobs.get(job.key)
        if older is not None:
            self._count(older, -1)
            job.take_over(older)
        self._jobs[job.key] = job
        self._count(job, 1)

    def put_first(self, job: Job) -> None:
        """Queue *job*, or move it if it is there, before all others."""
        if self._jobs.get(job.key) is not job:
            self.put(job)
        self._jobs.move_to_end(job.key, last=False)

    def take(self, key: str) -> Job | None:
        """Take the key's job out."""
        job = self._jobs.pop(key, None)
        if job is not None:
            self._count(job, -1)
        return job

    def take_first(self) -> Job:
        """Take the oldest job out."""
        job = self.take(next(iter(self._jobs)))
        assert job is not None
        return job

    def oldest_other(self) -> Job:
        """Return the oldest job that writes nothing."""
        return next(job for job in self._jobs.values() if job.act is not Act.WRITE)

    def answer(self, done: bool) -> None:
        """Tell everybody who waits."""
        for job in self._jobs.values():
            job.answer(done)

    def shed(self, most_bytes: int, is_elsewhere: Callable[[str], bool]) -> list[str]:
        """Let go of payload until at most *most_bytes* are left; return whose.

        The oldest first, but those that are nowhere else last.
        """
        if self.nbytes <= most_bytes:
            return []
        loaded = [job for job in self._jobs.values() if job.pieces is not None]
        loaded.sort(key=lambda job: not is_elsewhere(job.key))
        shed: list[str] = []
        for job in loaded:
            if self.nbytes <= most_bytes:
                break
            self.nbytes -= job.nbytes
            job.pieces = None
            shed.append(job.key)
        return shed

    def _count(self, job: Job, sign: int) -> None:
        self.nbytes += sign * job.nbytes
        self.others += sign * (job.act is not Act.WRITE)
