"""Carries out plans: the one place where decisions become awaits.

``happen`` is the only way in. It applies an event to the scheduler, tells the
observers, asks for a plan and sets everything in it in motion before it returns.
Copies, restores and releases are jobs of the slot's worker; a start is a *grant* that
the turn, in its caller's own task, is waiting for. So a cancelled caller cancels its
own accelerator work and nothing else.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import anyio
from anyio.abc import TaskGroup

from ..backends import Backend, BackendError
from ..scheduler import (
    CopyFound,
    CopyLost,
    CopyMoved,
    CopyStarted,
    EngineRestarted,
    Event,
    Plan,
    Restored,
    RestoreStarted,
    Scheduler,
    SessionClosed,
    SessionId,
    TurnRejected,
    UnknownSession,
)
from ..state_store import Manifest, StateStore, session_of
from .clock import Clock, Timer
from .errors import SessionEnded, TurnRefused
from .recovery import Recovery
from .slots import Grant, SlotLine
from .transfers import Lane, Transfers

Observer = Callable[[Event], None]

# After so long an accelerator that could not be restarted gets another try.
_DOWN_S = 30.0


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
        alone: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self.backend = backend
        self.clock = clock
        self._observers = tuple(observers)
        self._lines = [SlotLine() for _ in range(backend.capabilities.slots)]
        self._chores = SlotLine()  # what concerns the store alone
        self._lanes: dict[SessionId, Lane] = {}
        self._grants: dict[SessionId, Grant] = {}
        self._parting: dict[SessionId, bool] = {}  # closed, not gone; whether kept
        self._parted: anyio.Event | None = None
        self._restored: set[SessionId] = set()  # whose restore no prefill has proved
        self.recovery = Recovery(backend)
        self._transfers = Transfers(
            backend=backend,
            store=store,
            clock=clock,
            recovery=self.recovery,
            recover=self.recover,
            outlook=scheduler.outlook,
        )
        self._timer: Timer | None = None
        self._timer_s: float | None = None
        self._down_until_s = -math.inf
        self._alone = alone
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

    async def find(self, session: SessionId, prompt: "array[int]") -> int:
        """Look for a state that others have left in the store for *session*.

        Returns how many leading tokens of *prompt* it is of, and tells the scheduler.
        """
        key = self._lanes[session].key
        kv_tokens = await self._transfers.find(key, prompt)
        if kv_tokens:
            now_s = self.clock.now_s()
            self.happen(CopyFound(at_s=now_s, session=session, kv_tokens=kv_tokens))
        else:
            self._chores.post(partial(self._transfers.forget, key))
        return kv_tokens

    def leave(self, session: SessionId, *, kept: bool = False) -> None:
        """End a session and let its state go, wherever it is; *kept*: into the store.

        There it stays for whoever looks for it.
        """
        self._parting[session] = kept
        try:
            self.happen(
                SessionClosed(at_s=self.clock.now_s(), session=session, kept=kept)
            )
        except BaseException:
            self._parting.pop(session, None)
            raise
        self._restored.discard(session)

    async def leave_all(self) -> None:
        """End all sessions that have no turn in progress, and keep their state.

        Returns when what was on the accelerator is in the store.
        """
        for session in list(self._lanes):
            if session not in self._parting and self._idle(session):
                self.leave(session, kept=True)
        if self._parting:
            self._parted = anyio.Event()
            await self._parted.wait()

    @property
    def down(self) -> bool:
        """Whether the engine is gone, and there are others to go to."""
        return not self._alone and self.clock.now_s() < self._down_until_s

    def give_up(self) -> None:
        """Take note that the engine is gone and can't be brought back for now."""
        self._down_until_s = self.clock.now_s() + _DOWN_S

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
        try:
            restarted = await self.recovery.recover(generation)
        except BackendError:
            self.give_up()
            raise
        if restarted and not self._closed:
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

    async def empty(self, *, keeps: bool = False) -> None:
        """After close: empty the slots and drop what was parked in the store.

        *keeps* leaves there what is of sessions that were open.
        """
        if keeps:
            for session, lane in self._lanes.items():
                if self._parting.get(session, True):
                    self._transfers.keep(lane.key)
        await self._transfers.empty()

    # ---- what the store asks (``Owner``) ---------------------------------------------

    def lost(self, key: str) -> None:
        """The store has lost a state by itself."""
        self._lose_copy(key)

    def moved(self, key: str, tier: str) -> None:
        """The store has a state in another tier now."""
        session = self._session_of(key)
        if session is not None:
            now_s = self.clock.now_s()
            self._moved(CopyMoved(at_s=now_s, session=session, tier=tier))

    def worth_s(self, manifest: Manifest) -> float:
        """Return the seconds that a parked state is expected to save, per second."""
        session = self._session_of(manifest.key)
        if session is None:
            return 0.0
        lane = self.scheduler.session(session)
        return self.scheduler.outlook.worth_s(lane, self.clock.now_s())

    def _session_of(self, key: str) -> SessionId | None:
        """Return the session that *key* is of here: others may share the store.

        A session of the same id may be another tenant's.
        """
        session = SessionId(session_of(key))
        lane = self._lanes.get(session)
        ours = lane is not None and lane.key == key and self.knows(session)
        return session if ours else None

    # ---- planning --------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        for observer in self._observers:
            observer(event)

    def _plan(self) -> None:
        plan = self.scheduler.plan(self.clock.now_s())
        self._set_timer(plan.wake_at_s)
        if not plan.empty:
            self._carry_out(plan)
        if self._parting:
            self._part()

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
            job = partial(self._transfers.release, released)
            self._lines[released.slot].post(job)
        for forgotten in plan.forget:
            self._tell(forgotten)
            key = self._lanes[forgotten.session].key
            self._transfers.useless(key)
            if not self.down:  # else it is as good as ever for another engine
                self._chores.post(partial(self._transfers.forget, key))
        for copy in plan.copy:
            self._tell(copy)
            lane = self._lanes[copy.session]
            job = partial(self._copy, copy, lane, self._ids(copy))
            self._lines[copy.slot].post(job)
        for admitted in plan.admit:
            self._tell(admitted)
        for restore in plan.restore:
            self._tell(restore)
            # A fork begins from a copy of its parent's, of the very same tokens.
            key = self._lanes[restore.source or restore.session].key
            job = partial(self._restore, restore, key, self._ids(restore))
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

    def _part(self) -> None:
        """Forget the closed sessions that nothing is held for any more."""
        for session in [each for each in self._parting if not self.knows(each)]:
            kept = self._parting.pop(session)
            lane = self._lanes.pop(session)
            if kept:
                self._transfers.keep(lane.key)
        if not self._parting and self._parted is not None:
            self._parted.set()

    def _idle(self, session: SessionId) -> bool:
        return self.scheduler.session(session).turn is None

    # ---- jobs ------------------------------------------------------------------------

    async def _copy(
        self, copy: CopyStarted, lane: Lane, token_ids: Sequence[int]
    ) -> None:
        done = await self._transfers.copy(copy, lane, token_ids)
        self._moved(done.event)
        for key in done.evicted:
            self._lose_copy(key)

    async def _restore(
        self, restore: RestoreStarted, key: str, token_ids: Sequence[int]
    ) -> None:
        event = await self._transfers.restore(restore, key, token_ids)
        if isinstance(event, Restored):
            self._restored.add(restore.session)
        self._moved(event)

    def _moved(self, event: Event) -> None:
        if not self._closed:
            self.happen(event)

    def _lose_copy(self, key: str) -> None:
        self._transfers.useless(key)
        session = self._session_of(key)
        if session is not None:
            self._moved(CopyLost(at_s=self.clock.now_s(), session=session))
