"""Carries out plans: the one place where decisions become awaits.

``happen`` is the only way in. It applies an event to the scheduler, tells the
observers, asks for a plan and sets everything in it in motion before it returns.
Copies, restores and releases are jobs of the slot's worker; a start is a *grant* that
the turn, in its caller's own task, is waiting for. So a cancelled caller cancels its
own accelerator work and nothing else.
"""

import contextlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from anyio.abc import TaskGroup

from ..backends import Backend, BackendError, EngineLost
from ..scheduler import (
    Copied,
    CopyFailed,
    CopyLost,
    CopyStarted,
    EngineRestarted,
    Event,
    Plan,
    Released,
    Restored,
    RestoreFailed,
    RestoreStarted,
    Scheduler,
    SessionClosed,
    SessionId,
    TurnRejected,
    UnknownSession,
)
from ..state_store import KVState, StateStore
from .clock import Clock, Timer
from .errors import SessionEnded, TurnRefused
from .recovery import Recovery
from .slots import Grant, SlotLine

Observer = Callable[[Event], None]


class Lane(Protocol):
    """What dispatch has to know of a session: the token ids that its KV state is of."""

    @property
    def tokens(self) -> "array[int]":
        """Token ids; the first ``kv_tokens`` of them are those of the state."""
        ...


class Dispatch:
    """Connects one scheduler, one backend and one store."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        backend: Backend,
        store: StateStore,
        clock: Clock,
        tasks: TaskGroup,
        observers: Iterable[Observer] = (),
    ) -> None:
        self.scheduler = scheduler
        self.backend = backend
        self.clock = clock
        self._store = store
        self._observers = tuple(observers)
        self._lines = [SlotLine() for _ in range(backend.capabilities.slots)]
        self._chores = SlotLine()  # what concerns the store alone
        self._lanes: dict[SessionId, Lane] = {}
        self._grants: dict[SessionId, Grant] = {}
        self._parked: set[SessionId] = set()  # whose copy in the store is of use
        self._in_store: set[SessionId] = set()  # of whom anything may be in the store
        self._restored: set[SessionId] = set()  # whose restore no prefill has proved
        self.recovery = Recovery(backend)
        self._timer: Timer | None = None
        self._timer_s: float | None = None
        self._closed = False
        for line in (*self._lines, self._chores):
            tasks.start_soon(line.work)

    # ---- what clients call -----------------------------------------------------------

    def happen(self, event: Event) -> None:
        """Apply *event* and set in motion what follows from it."""
        if self._closed:
            raise SessionEnded("the runtime is closed")
        self.scheduler.apply(event, event.at_s)
        self._tell(event)
        self._plan()

    def happen_all(self, *events: Event) -> None:
        """Apply several events and plan once, as if they were one."""
        for event in events[:-1]:
            self.scheduler.apply(event, event.at_s)
            self._tell(event)
        self.happen(events[-1])

    def enter(self, session: SessionId, lane: Lane) -> None:
        """Make the token ids of a session known."""
        self._lanes[session] = lane

    def leave(self, session: SessionId) -> None:
        """End a session and let its state go, wherever it is."""
        self.happen(SessionClosed(at_s=self.clock.now_s(), session=session))
        del self._lanes[session]
        self._restored.discard(session)

    def knows(self, session: SessionId) -> bool:
        """Return whether a session of this id is open, or not wholly gone yet."""
        try:
            self.scheduler.session(session)
        except UnknownSession:
            return False
        return True

    def expect(self, session: SessionId) -> Grant:
        """Return the grant that the next start of *session* is going to fulfil."""
        grant = Grant()
        self._grants[session] = grant
        return grant

    def abandon(self, session: SessionId) -> None:
        """Expect no start of *session* any more: its turn has been given up."""
        self._grants.pop(session, None)

    def verify_restore(self, session: SessionId, reused_all: bool) -> bool | None:
        """Return whether a restore that has just been proved was real; None if none."""
        if session not in self._restored:
            return None
        self._restored.discard(session)
        return reused_all

    async def recover(self, session: SessionId, generation: int) -> None:
        """Replace the engine that *session* has lost in *generation*."""
        if await self.recovery.recover(generation) and not self._closed:
            self.happen(EngineRestarted(at_s=self.clock.now_s(), session=session))

    def close(self) -> None:
        """Stop planning; whoever still waits for a grant gets SessionEnded."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for grant in self._grants.values():
            grant.refuse(SessionEnded("the runtime is closed"))
        self._grants.clear()
        for line in self._lines:
            line.close()

    async def empty(self) -> None:
        """After close: empty the slots and drop what was parked in the store."""
        for slot in range(len(self._lines)):
            with contextlib.suppress(BackendError):
                await self.backend.release(slot)
        self._parked.clear()
        for session in list(self._in_store):
            await self._forget(session)

    # ---- planning --------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        for observer in self._observers:
            observer(event)

    def _plan(self) -> None:
        plan = self.scheduler.plan(self.clock.now_s())
        self._set_timer(plan.wake_at_s)
        if not plan.empty:
            self._carry_out(plan)

    def _wake(self) -> None:
        self._timer = self._timer_s = None
        if not self._closed:
            self._plan()

    def _set_timer(self, when_s: float | None) -> None:
        if when_s == self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_s = when_s
        if when_s is not None:
            self._timer = self.clock.call_at(when_s, self._wake)

    def _carry_out(self, plan: Plan) -> None:
        """Set every entry in motion, in the order that the plan's contract asks for."""
        for rejected in plan.reject:
            self._tell(rejected)
            self._refuse(rejected)
        for released in plan.release:
            self._tell(released)
            self._lines[released.slot].post(partial(self._release, released))
        for forgotten in plan.forget:
            self._tell(forgotten)
            self._parked.discard(forgotten.session)
            self._chores.post(partial(self._forget, forgotten.session))
        for copy in plan.copy:
            self._tell(copy)
            self._lines[copy.slot].post(partial(self._copy, copy, self._ids(copy)))
        for admitted in plan.admit:
            self._tell(admitted)
        for restore in plan.restore:
            self._tell(restore)
            job = partial(self._restore, restore, self._ids(restore))
            self._lines[restore.slot].post(job)
        for start in plan.start:
            self._tell(start)
            place = self._lines[start.slot].join()
            self._grants.pop(start.session).give(start.slot, place)

    def _ids(self, moved: CopyStarted | RestoreStarted) -> "array[int]":
        return self._lanes[moved.session].tokens[: moved.kv_tokens]

    def _refuse(self, rejected: TurnRejected) -> None:
        grant = self._grants.pop(rejected.session, None)
        if grant is not None:
            grant.refuse(
                TurnRefused(f"session {rejected.session!r}: {rejected.reason}")
            )

    # ---- jobs ------------------------------------------------------------------------

    async def _release(self, released: Released) -> None:
        # A slot that can't be emptied belongs to an engine that is gone: the next turn
        # there says so to its caller.
        with contextlib.suppress(BackendError):
            await self.recovery.wait()
            await self.backend.release(released.slot)

    async def _forget(self, session: SessionId) -> None:
        if session not in self._parked:  # else a newer copy has the key by now
            with contextlib.suppress(Exception):
                await self._store.drop(session)
            self._in_store.discard(session)

    async def _copy(self, copy: CopyStarted, ids: Sequence[int]) -> None:
        began_s = self.clock.now_s()
        try:
            await self.recovery.wait()
            state = await self.backend.export_kv(
                copy.slot, copy.session, ids, first_token=copy.first_token
            )
            self._in_store.add(copy.session)
            receipt = await self._store.park(state)
            self._parked.add(copy.session)
        except Exception as error:  # what can't be copied is computed again
            now_s = self.clock.now_s()
            self._moved(
                CopyFailed(at_s=now_s, session=copy.session, reason=_reason(error))
            )
            return
        now_s = self.clock.now_s()
        self._moved(
            Copied(
                at_s=now_s,
                session=copy.session,
                kv_tokens=copy.kv_tokens,
                nbytes=receipt.nbytes,
                seconds=now_s - began_s,
                tier=receipt.tier,
            )
        )
        for key in receipt.evicted:
            self._lose_copy(SessionId(key))

    async def _restore(self, restore: RestoreStarted, ids: Sequence[int]) -> None:
        began_s = self.clock.now_s()
        try:
            # A fork begins from a copy of its parent's, of the very same tokens.
            key = restore.source or restore.session
            state, receipt = await self._store.fetch(key)
            await self._import(restore, state, ids)
        except Exception as error:  # parked state is a cache: it may fail in any way
            reason = _reason(error)
            self._moved(
                RestoreFailed(
                    at_s=self.clock.now_s(), session=restore.session, reason=reason
                )
            )
            return
        self._restored.add(restore.session)
        now_s = self.clock.now_s()
        self._moved(
            Restored(
                at_s=now_s,
                session=restore.session,
                kv_tokens=restore.kv_tokens,
                nbytes=receipt.nbytes,
                seconds=now_s - began_s,
                tier=receipt.tier,
            )
        )

    async def _import(
        self, restore: RestoreStarted, state: KVState, ids: Sequence[int]
    ) -> None:
        await self.recovery.wait()
        generation = self.recovery.generation
        try:
            await self.backend.import_kv(restore.slot, state, ids)
        except EngineLost:
            if not self.recovery.possible:
                raise
            # The engine died before; the parked state is as good as ever.
            await self.recover(restore.session, generation)
            await self.backend.import_kv(restore.slot, state, ids)

    def _moved(self, event: Event) -> None:
        if not self._closed:
            self.happen(event)

    def _lose_copy(self, session: SessionId) -> None:
        self._parked.discard(session)
        # The store may be shared, and the session may have ended meanwhile.
        with contextlib.suppress(UnknownSession):
            self._moved(CopyLost(at_s=self.clock.now_s(), session=session))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
