"""Carries out plans: the one place where decisions become awaits.

``happen`` is the only way in. It applies an event to the scheduler, tells the
observers, asks for a plan and sets everything in it in motion before it returns.
Copies, restores and releases run as tasks of the runtime; a start is a *grant* that the
turn, in its caller's own task, is waiting for. So a cancelled caller cancels its own
accelerator work and nothing else.

Work on one slot runs in the order in which plans named it (``SlotLine``); nothing is
ever queued inside an engine.
"""

import contextlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from ..backends import Backend, BackendError
from ..scheduler import (
    Copied,
    CopyFailed,
    CopyLost,
    CopyStarted,
    DecodeStarted,
    Event,
    Plan,
    PrefillStarted,
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
from ..state_store import StateStore, StateStoreError
from .clock import Clock, Timer
from .errors import SessionEnded, TurnRefused

Observer = Callable[[Event], None]


class Lane(Protocol):
    """What dispatch has to know of a session: the token ids that its KV state is of."""

    @property
    def tokens(self) -> "array[int]":
        """Token ids; the first ``kv_tokens`` of them are those of the state."""
        ...


class SlotLine:
    """First come, first served on one slot; joining the line is synchronous."""

    def __init__(self) -> None:
        self._line: deque[anyio.Event] = deque()

    def join(self) -> "Place":
        """Take a place at the end of the line."""
        turn = anyio.Event()
        self._line.append(turn)
        if self._line[0] is turn:
            turn.set()
        return Place(self._line, turn)


class Place:
    """One place in a line; the body of ``async with`` runs when it is at the front."""

    def __init__(self, line: deque[anyio.Event], turn: anyio.Event) -> None:
        self._line = line
        self._turn = turn

    async def __aenter__(self) -> None:
        if not self._turn.is_set():
            try:
                await self._turn.wait()
            except BaseException:
                self.leave()
                raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Give the place up; whoever is then at the front may go."""
        self._line.remove(self._turn)
        if self._line:
            self._line[0].set()


class Grant:
    """What a turn waits for: its place on a slot, or the reason why it gets none."""

    def __init__(self) -> None:
        self._given = anyio.Event()
        self._slot = -1
        self._place: Place | None = None
        self._refusal: Exception | None = None

    def give(self, slot: int, place: Place) -> None:
        """Let the turn run on *slot* when its *place* in line comes."""
        self._slot, self._place = slot, place
        self._given.set()

    def refuse(self, error: Exception) -> None:
        """Let the turn fail with *error*."""
        self._refusal = error
        self._given.set()

    async def wait(self) -> tuple[int, Place]:
        """Return slot and place, or raise the refusal."""
        if not self._given.is_set():
            try:
                await self._given.wait()
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
        self._tasks = tasks
        self._observers = tuple(observers)
        self._lines = [SlotLine() for _ in range(backend.capabilities.slots)]
        self._lanes: dict[SessionId, Lane] = {}
        self._grants: dict[SessionId, Grant] = {}
        self._in_store: set[SessionId] = set()
        self._timer: Timer | None = None
        self._timer_s: float | None = None
        self._closed = False

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

    def expect(self, session: SessionId) -> Grant:
        """Return the grant that the next start of *session* is going to fulfil."""
        grant = Grant()
        self._grants[session] = grant
        return grant

    def abandon(self, session: SessionId) -> None:
        """Forget the grant of a turn that has been given up."""
        grant = self._grants.pop(session, None)
        if grant is not None:
            grant.withdraw()

    def close(self) -> None:
        """Stop planning; whoever still waits for a grant gets SessionEnded."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for grant in self._grants.values():
            grant.refuse(SessionEnded("the runtime is closed"))
        self._grants.clear()

    async def empty(self) -> None:
        """After close: empty the slots and drop what was parked in the store."""
        for slot in range(len(self._lines)):
            with contextlib.suppress(BackendError):
                await self.backend.release(slot)
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
            self._tasks.start_soon(self._release, released, self._join(released.slot))
        for forgotten in plan.forget:
            self._tell(forgotten)
            self._tasks.start_soon(self._forget, forgotten.session)
        for copy in plan.copy:
            self._tell(copy)
            ids = self._ids(copy)
            self._tasks.start_soon(self._copy, copy, ids, self._join(copy.slot))
        for admitted in plan.admit:
            self._tell(admitted)
        for restore in plan.restore:
            self._tell(restore)
            ids = self._ids(restore)
            place = self._join(restore.slot)
            self._tasks.start_soon(self._restore, restore, ids, place)
        for start in plan.start:
            self._tell(start)
            self._grant(start)

    def _join(self, slot: int) -> Place:
        return self._lines[slot].join()

    def _ids(self, moved: CopyStarted | RestoreStarted) -> "array[int]":
        return self._lanes[moved.session].tokens[: moved.kv_tokens]

    def _refuse(self, rejected: TurnRejected) -> None:
        grant = self._grants.pop(rejected.session, None)
        if grant is not None:
            grant.refuse(
                TurnRefused(f"session {rejected.session!r}: {rejected.reason}")
            )

    def _grant(self, start: PrefillStarted | DecodeStarted) -> None:
        self._grants.pop(start.session).give(start.slot, self._join(start.slot))

    # ---- the tasks -------------------------------------------------------------------

    async def _release(self, released: Released, place: Place) -> None:
        async with place:
            # A slot that can't be emptied belongs to an engine that is gone: the next
            # turn there says so to its caller.
            with contextlib.suppress(BackendError):
                await self.backend.release(released.slot)

    async def _forget(self, session: SessionId) -> None:
        self._in_store.discard(session)
        with contextlib.suppress(StateStoreError):
            await self._store.drop(session)

    async def _copy(self, copy: CopyStarted, ids: Sequence[int], place: Place) -> None:
        began_s = self.clock.now_s()
        try:
            async with place:
                state = await self.backend.export_kv(copy.slot, copy.session, ids)
            self._in_store.add(copy.session)
            receipt = await self._store.park(state)
        except (BackendError, StateStoreError) as error:
            self._moved(
                CopyFailed(
                    at_s=self.clock.now_s(), session=copy.session, reason=str(error)
                )
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

    async def _restore(
        self, restore: RestoreStarted, ids: Sequence[int], place: Place
    ) -> None:
        began_s = self.clock.now_s()
        try:
            async with place:
                state, receipt = await self._store.fetch(restore.session)
                await self.backend.import_kv(restore.slot, state, ids)
        except (BackendError, StateStoreError) as error:
            self._moved(
                RestoreFailed(
                    at_s=self.clock.now_s(), session=restore.session, reason=str(error)
                )
            )
            return
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

    def _moved(self, event: Event) -> None:
        if not self._closed:
            self.happen(event)

    def _lose_copy(self, session: SessionId) -> None:
        self._in_store.discard(session)
        # The store may be shared, and the session may have ended meanwhile.
        with contextlib.suppress(UnknownSession):
            self._moved(CopyLost(at_s=self.clock.now_s(), session=session))
