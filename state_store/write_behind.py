"""Carries to one tier what it should hold, while nobody waits.

A park waits for none of this. What is queued is the newest state per key, or that the
key is to be dropped. The queue keeps at most ``queue_bytes`` of payload alive by
itself, and one state that is under way. Beyond that the oldest entries let go of their
bytes, those first that a faster tier holds: they stay queued, and are read from there.

A tier that does not answer gets a pause (``patience.py``); the queue waits meanwhile,
and whoever waits for the queue is told that it takes longer. A write is given up after
eight failures (a drop never), or at once when trying again is of no use: the session
belongs to another process, the state is larger than the tier.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from typing import Final

from .copies import Content, Copies, Held
from .errors import (
    StateCorrupt,
    StateLeased,
    StateMissing,
    StoreFull,
    StoreUnavailable,
)
from .losses import Losses
from .patience import Patience
from .pieces import is_whole, piece_for
from .state import KVState, Manifest
from .store import Inventory, Receipt
from .write_queue import Act, Job, WriteQueue

_MOST_ATTEMPTS: Final = 8
_MOST_OTHERS: Final = 65_536
_LASTING: Final = (StateCorrupt, StateLeased, StateMissing, StoreFull)
_REASONS: Final[dict[type[Exception], str]] = {
    StateCorrupt: "corrupt",
    StateLeased: "leased",
    StateMissing: "missing",
    StoreFull: "full",
    StoreUnavailable: "unavailable",
}


class WriteBehind:
    """The way to one tier: by the queue, or past it for what can't wait.

    *load* returns the whole state from a tier faster than the one it is told, if any.
    """

    def __init__(
        self,
        tier: Inventory,
        number: int,
        *,
        copies: Copies,
        losses: Losses,
        load: Callable[[Manifest, int], Awaitable[KVState | None]],
        queue_bytes: int,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.name = ""  # the tier's own, by its receipts
        self._tier = tier
        self._number = number
        self._copies = copies
        self._losses = losses
        self._read = load
        self._queue_bytes = queue_bytes
        self._queue = WriteQueue()
        self._aside: dict[str, Job | None] = {}
        self._job: Job | None = None  # under way, in _carrying
        self._carrying: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._patience = Patience(tier)
        self._closing = False
        self._closed = False

    @property
    def queued_bytes(self) -> int:
        """Payload that is queued or under way."""
        return self._queue.nbytes + (self._job.nbytes if self._job else 0)

    # ---- by the queue ----------------------------------------------------------------

    def push(self, manifest: Manifest, pieces: KVState) -> None:
        """Queue the newest state of a key; *pieces* are its rows, or the last of them.

        It takes the place of what was queued for the key.
        """
        self._put(Job(Act.WRITE, manifest.key, manifest, pieces))

    def discard(self, key: str) -> None:
        """Queue that the tier has to drop the key, if it has or is to get it."""
        nothing = self._copies.held(key, self._number) is Content.NOTHING
        if self._is_busy(key) or not nothing:
            self._put(Job(Act.DROP, key))

    def look(self, key: str) -> None:
        """Queue that somebody has to see what the tier has of the key."""
        if not self._is_busy(key):
            self._put(Job(Act.LOOK, key))

    async def stop(self, key: str) -> None:
        """Write nothing of the key any more, from when this returns on."""
        job = self._queue.take(key)
        if job is not None:
            job.answer(False)
        if self._under_way(key) and self._carrying:
            self._carrying.cancel()
            await asyncio.wait([self._carrying])

    async def written(self, key: str) -> bool:
        """Wait until it was the key's turn; return whether the tier has the newest."""
        job = self._queued(key) or self._under_way(key)
        if job is None or not self._patience.is_over:
            return self._copies.holds(key, self._number)
        if self._queue.get(key) is job:
            self._queue.put_first(job)
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        job.waiting.append(future)
        return await future

    async def settle(self) -> None:
        """Wait until it was the turn of everything that is queued now."""
        for key in self.waiting():
            await self.written(key)

    def waiting(self) -> list[str]:
        """Return the keys that wait or are under way."""
        under_way = [self._job.key] if self._job is not None else []
        return [*under_way, *self._aside, *self._queue.keys()]

    def covers(self, key: str) -> bool:
        """Return whether the newest state is safe here: the tier will get all of it."""
        return any(
            job.manifest is self._copies.newest(key) and self._suffices(job)
            for job in (self._queued(key), self._under_way(key))
            if job is not None and job.act is Act.WRITE
        )

    def state(self, key: str) -> KVState | None:
        """Return the newest state, if all of it is here."""
        for job in (self._queued(key), self._under_way(key)):
            if (
                job is not None
                and job.manifest is self._copies.newest(key)
                and is_whole(job.pieces)
            ):
                return job.pieces
        return None

    # ---- past the queue --------------------------------------------------------------

    async def write(
        self, manifest: Manifest, piece: KVState, *, is_newer: bool
    ) -> Receipt:
        """Park *piece*, after which the tier holds the state of *manifest*.

        If it *is_newer* than what the key holds, it is the newest from then on. The
        receipt says who is lost by it. If it fails, what was queued stays so.
        """
        with self._copies.using(manifest.key), self._past(manifest.key):
            if self._under_way(manifest.key) and self._carrying:
                await asyncio.wait([self._carrying])
            return await self._park(manifest, piece, is_newer=is_newer)

    @contextlib.contextmanager
    def _past(self, key: str) -> Generator[None]:
        """Keep the key's job, and what comes in for it, from the worker meanwhile.

        They are of no use afterwards, unless what was done past the queue fails.
        """
        self._aside[key] = self._queue.take(key)
        try:
            yield
        except BaseException:
            job = self._aside.pop(key)
            if job is not None:
                self._put(job)
            raise
        job = self._aside.pop(key)
        if job is not None:
            job.answer(True)

    # ---- the end ---------------------------------------------------------------------

    async def flush(self) -> None:
        """Carry out what is queued, as far as the tier answers; then do no more."""
        self._closing = True
        self._patience.hurry()
        if self._worker is not None:
            await asyncio.wait([self._worker])

    async def cancel(self) -> None:
        """Stop at once; what is queued is let go."""
        self._closed = True
        tasks = [task for task in (self._worker, self._carrying) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._queue.answer(False)
        self._queue = WriteQueue()
        if self._job is not None:
            self._job.answer(False)
            self._job = None

    # ---- the worker ------------------------------------------------------------------

    async def _work(self) -> None:
        while self._queue or not self._patience.is_over:
            if not self._patience.is_over:
                await self._patience.wait()
                if self._closing and not self._patience.is_over:
                    break
                continue
            job = self._queue.take_first()
            carrying = asyncio.create_task(self._carry_out(job))
            self._job, self._carrying = job, carrying
            await asyncio.wait([carrying])
            if self._job is job:  # stopped before it began
                self._conclude(job, asyncio.CancelledError())
        self._queue.answer(False)

    async def _carry_out(self, job: Job) -> None:
        with self._copies.using(job.key):
            try:
                if job.manifest is not None:
                    await self._write(job, job.manifest)
                elif job.act is Act.DROP:
                    await self._drop(job.key)
                else:
                    await self._look(job.key)
            except Exception as error:  # whatever it is, the next one has its turn
                self._conclude(job, error)
            except asyncio.CancelledError as error:
                self._conclude(job, error)
                raise
            else:
                self._patience.worked()
                self._conclude(job, None)

    def _conclude(self, job: Job, error: BaseException | None) -> None:
        self._job = self._carrying = None
        if isinstance(error, Exception):
            self._failed(error)
            if self._again(job, error):
                return
            if job.act is not Act.WRITE:  # what the tier holds is another's
                self._copies.emptied(job.key, self._number)
        job.answer(error is None)
        self._losses.reconsider(job.key)

    def _again(self, job: Job, error: Exception) -> bool:
        """Put *job* back; return False if trying again is of no use."""
        job.attempts += 1
        newer = self._queued(job.key)
        if newer is not None:
            self._queue.take(job.key)
            newer.take_over(job)
            self._put(newer)
            return True
        if isinstance(error, _LASTING):
            return False
        if job.act is Act.WRITE and job.attempts >= _MOST_ATTEMPTS:
            return False
        job.answer(False)
        self._put(job)
        return True

    def _failed(self, error: Exception) -> None:
        reason = _REASONS.get(type(error), type(error).__name__)
        self.refused[f"write-behind {reason}"] += 1
        if not isinstance(error, _LASTING):
            self._patience.begin()
            self._queue.answer(False)

    # ---- writing ---------------------------------------------------------------------

    async def _write(self, job: Job, manifest: Manifest) -> None:
        held = self._copies.held(job.key, self._number)
        if isinstance(held, Content) and not is_whole(job.pieces):
            held = await self._look(job.key)
            if held == manifest:
                return
        piece = piece_for(held, job.pieces) or await self._load(manifest, held)
        try:
            receipt = await self._park(manifest, piece)
        except StateMissing:  # the rows that these continue
            if is_whole(piece):
                raise
            whole = piece_for(Content.OTHER, job.pieces)
            whole = whole or await self._load(manifest, Content.OTHER)
            receipt = await self._park(manifest, whole)
        self._losses.tell(receipt.evicted)

    async def _park(
        self, manifest: Manifest, piece: KVState, *, is_newer: bool = False
    ) -> Receipt:
        began = self._copies.begin()
        try:
            receipt = await self._tier.park(piece)
        except StoreFull:
            raise  # everything is as it was
        except BaseException:
            self._copies.doubt(manifest.key, self._number)
            raise
        self.name = receipt.tier
        if is_newer:
            self._copies.replace(manifest.key, manifest, self._number)
        else:
            self._copies.saw(manifest.key, self._number, manifest)
        lost = self._losses.displaced(receipt.evicted, self._number, began)
        return replace(receipt, evicted=lost)

    async def _drop(self, key: str) -> None:
        try:
            await self._tier.drop(key)
        except BaseException:
            self._copies.doubt(key, self._number)
            raise
        self._copies.emptied(key, self._number)

    async def _look(self, key: str) -> Held:
        try:
            manifest = await self._tier.find(key)
        except (StateMissing, StateCorrupt):
            self._copies.emptied(key, self._number)
            return Content.NOTHING
        self._copies.saw(key, self._number, manifest)
        return manifest

    async def _load(self, manifest: Manifest, held: Held) -> KVState:
        state = await self._read(manifest, self._number)
        if state is None:
            raise StateMissing(f"state {manifest.key!r} is in no faster tier any more")
        return piece_for(held, state) or state

    # ---- the queue -------------------------------------------------------------------

    def _put(self, job: Job) -> None:
        if self._closed:
            return
        if job.key in self._aside:
            older = self._aside[job.key]
            if older is not None and older is not job:
                job.take_over(older)
            self._aside[job.key] = job
            return
        self._queue.put(job)
        if self._queue.others > _MOST_OTHERS:
            # The tier has been away for long. What it holds expires, or is found to be
            # of another conversation when it is asked for.
            oldest = self._queue.oldest_other()
            self._queue.take(oldest.key)
            self._copies.emptied(oldest.key, self._number)
        for key in self._queue.shed(self._queue_bytes, self._is_above):
            self._losses.reconsider(key)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    def _is_busy(self, key: str) -> bool:
        return bool(self._queued(key) or self._under_way(key))

    def _queued(self, key: str) -> Job | None:
        return self._queue.get(key) or self._aside.get(key)

    def _under_way(self, key: str) -> Job | None:
        return self._job if self._job is not None and self._job.key == key else None

    def _suffices(self, job: Job) -> bool:
        """Return whether the tier gets the whole state by the job's bytes alone."""
        if job.pieces is None:
            return False
        if piece_for(self._copies.held(job.key, self._number), job.pieces) is not None:
            return True
        before = self._under_way(job.key)
        return (
            before is not None
            and before is not job
            and before.manifest is not None
            and job.pieces.manifest.continues(before.manifest)
            and self._suffices(before)
        )

    def _is_above(self, key: str) -> bool:
        return any(holder < self._number for holder in self._copies.holders(key))
