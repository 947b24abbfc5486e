"""The scheduler: two verbs, ``apply`` an event and ``plan`` what to do about it.

It has no clock, no I/O and no randomness: the same events at the same times give the
same plans, whether they come from live agents, from a sidecar or from a replay.

``plan`` enters each act in the books before it returns it, so a plan is never given
twice and two plans never contradict each other. Its steps, in order: let go what is due
(retention, aborted turns, closed sessions), admit the head of the queue while it fits
(making room by the policy where it does not), start what is ready.

Invariants, proved by tests over random histories and over all reachable states:

* only ready work is started (``Session.apply`` refuses anything else);
* the ledger is never overdrawn and empty when no session lives;
* a slot has one owner, a session one unit of work;
* the head of the queue is admitted as soon as running turns have ended, and every turn
  becomes the head within the age bound plus the turns ahead of it.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .errors import IllegalMove, InvalidSetting, LedgerError, UnknownSession
from .events import (
    Copied,
    CopyFailed,
    CopyForgotten,
    CopyLost,
    CopyStarted,
    DecodeDone,
    DecodeStarted,
    EngineRestarted,
    Event,
    PrefillDone,
    PrefillStarted,
    Released,
    Restored,
    RestoreFailed,
    RestoreStarted,
    SessionClosed,
    SessionId,
    SessionOpened,
    TurnAborted,
    TurnAdmitted,
    TurnRejected,
    TurnSubmitted,
)
from .ledger import Capacity, Ledger
from .plan import Draft, Plan
from .policy import Policy
from .queue import AdmissionQueue, Head, Rank
from .room import Lack, choose_victims
from .session import Departure, Phase, Residency, Session, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """``max_prefills`` turns at most are between admission and first token.

    More of them at once delay each other's first token and every running decode. A turn
    older than ``age_bound_s`` goes before all others.
    """

    max_prefills: int = 1
    age_bound_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_prefills < 1:
            raise InvalidSetting(
                f"max_prefills must be at least 1, not {self.max_prefills}"
            )
        if not self.age_bound_s >= 0:
            raise InvalidSetting(
                f"age_bound_s must not be negative, got {self.age_bound_s}"
            )


_NOTHING = Plan()


class Scheduler:
    """Decides for one accelerator. Feed it events, carry out its plans."""

    def __init__(
        self,
        *,
        capacity: Capacity,
        policy: Policy,
        settings: SchedulerSettings | None = None,
    ) -> None:
        self._settings = settings or SchedulerSettings()
        self._capacity = capacity
        self._policy = policy
        self._ledger = Ledger(slots=capacity.slots, kv_tokens=capacity.kv_tokens)
        self._queue = AdmissionQueue(age_bound_s=self._settings.age_bound_s)
        self._sessions: dict[SessionId, Session] = {}
        # Resident, without a turn and not on the move; longest wait first.
        self._waiting: OrderedDict[SessionId, Session] = OrderedDict()
        # Sessions whose state may have to leave, checked at the next plan.
        self._leaving: deque[Session] = deque()
        # Admitted turns that may be ready to start, checked at the next plan.
        self._startable: deque[Session] = deque()
        self._hopeless: list[tuple[Session, Turn]] = []
        self._useless_copies: list[Session] = []
        self._timers: list[tuple[float, int, Session, int, Departure]] = []
        self._timer_number = 0
        self._prefilling: set[SessionId] = set()
        self._running = 0
        self._moving: set[SessionId] = set()
        self.forced_admissions = 0

    # ---- what a policy may look at ---------------------------------------------------

    @property
    def waiting(self) -> Iterable[Session]:
        """Resident sessions that wait for a tool or a user, longest wait first."""
        return self._waiting.values()

    @property
    def free_tokens(self) -> int:
        """KV tokens that nobody has reserved."""
        return self._ledger.free_tokens

    # ---- for telemetry and tests -----------------------------------------------------

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    @property
    def queued_turns(self) -> int:
        """How many turns wait for admission."""
        return len(self._queue)

    @property
    def reserved_tokens(self) -> int:
        """KV tokens that are reserved now."""
        return self._ledger.reserved_tokens

    def session(self, session: SessionId) -> Session:
        """Return the session, read only; raise UnknownSession."""
        found = self._sessions.get(session)
        if found is None:
            raise UnknownSession(f"session {session!r} is not open")
        return found

    def check_integrity(self) -> None:
        """Raise LedgerError if the books disagree with the sessions."""
        self._ledger.check_integrity()
        holders = 0
        for session in self._sessions.values():
            held = self._ledger.held_tokens(session.id)
            holders += session.slot is not None
            if session.slot is None and held:
                raise LedgerError(f"{session.id!r} holds {held} tokens without a slot")
            limit = session.copied_tokens if session.slot is None else held
            if not session.copied_tokens <= session.held_tokens <= limit:
                raise LedgerError(
                    f"{session.id!r} has {session.held_tokens} tokens of state, "
                    f"{session.copied_tokens} of them copied, and may have {limit}"
                )
        if holders != self._ledger.holders:
            raise LedgerError(
                f"{holders} sessions have a slot, {self._ledger.holders} are booked"
            )

    # ---- the two verbs ---------------------------------------------------------------

    def apply(self, event: Event, now_s: float) -> None:
        """Take note of *event*.

        Raises IllegalMove or UnknownSession, and then has changed nothing.
        """
        if isinstance(event, SessionOpened):
            self._open(event)
            return
        if isinstance(event, EngineRestarted):
            self._lose_residents(event)
            return
        session = self.session(event.session)
        turn, waits, had_copy = session.turn, session.waits, session.copied_tokens > 0
        was_running = turn is not None and turn.running
        session.apply(event)
        if was_running and (session.turn is None or not session.turn.running):
            self._running -= 1
        if had_copy and session.copied_tokens == 0 and not isinstance(event, CopyLost):
            self._useless_copies.append(session)
        if session.waits != waits:
            self._begin_wait(session, now_s)
        self._follow(session, event)

    def plan(self, now_s: float) -> Plan:
        """Return what to do now; it is entered in the books already."""
        if not (self._leaving or self._startable or self._queue or self._unplanned):
            wake_at_s = self._timers[0][0] if self._timers else None
            if wake_at_s is None or wake_at_s > now_s:
                return _NOTHING if wake_at_s is None else Plan(wake_at_s=wake_at_s)
        draft = Draft()
        self._reject_hopeless(draft, now_s)
        self._let_go_due(draft, now_s)
        self._start_ready(draft, now_s)
        blocked = self._admit_fitting(draft, now_s)
        self._start_ready(draft, now_s)
        self._forget_useless(draft, now_s)
        return draft.finish(self._wake_at_s(blocked, now_s))

    @property
    def _unplanned(self) -> bool:
        """Whether something else than a departure, start or admission is due."""
        return bool(self._hopeless or self._useless_copies)

    # ---- following events ------------------------------------------------------------

    def _open(self, event: SessionOpened) -> None:
        if event.session in self._sessions:
            raise IllegalMove(f"session {event.session!r} is open already")
        self._sessions[event.session] = Session(id=event.session, parent=event.parent)

    def _lose_residents(self, event: EngineRestarted) -> None:
        for holder in self._ledger.sessions:
            session = self._sessions[holder]
            session.apply(event)
            if session.departure is not None:
                self._leaving.append(session)

    def _begin_wait(self, session: Session, now_s: float) -> None:
        retention = self._policy.on_wait(session, now_s)
        if retention is None:
            return
        if retention.at_s <= now_s:
            self._depart(session, retention.departure)
            return
        self._timer_number += 1
        due = (retention.at_s, self._timer_number)
        heapq.heappush(
            self._timers, (*due, session, session.waits, retention.departure)
        )

    def _depart(
        self, session: Session, departure: Departure, *, forced: bool = False
    ) -> None:
        session.departure = departure
        session.departure_forced = forced
        self._leaving.append(session)

    def _follow(self, session: Session, event: Event) -> None:
        """Bring queue, ledger and indexes in line with what has happened."""
        match event:
            case TurnSubmitted():
                self._enqueue(session, event)
            case PrefillDone():
                self._prefilling.discard(session.id)
                self._ledger.resize(session.id, _needed_tokens(session))
                self._startable.append(session)
            case TurnAborted():
                self._prefilling.discard(session.id)
                if session.id in self._queue:
                    self._queue.remove(session.id)
                self._settle(session)
            case Copied() | CopyFailed():
                self._moving.discard(session.id)
                if isinstance(event, CopyFailed):
                    self._give_up_copy(session)
                self._settle(session)
            case Restored() | RestoreFailed():
                self._moving.discard(session.id)
                self._settle(session)
            case DecodeDone() | SessionClosed():
                self._settle(session)
            case CopyLost():
                if session.id in self._queue:
                    self._queue.rerank(session.id, _rank(session))
            case _:
                pass

    def _enqueue(self, session: Session, event: TurnSubmitted) -> None:
        self._waiting.pop(session.id, None)
        turn = session.turn
        assert turn is not None
        limit = min(self._capacity.context_tokens, self._capacity.kv_tokens)
        if turn.tokens > limit:
            self._hopeless.append((session, turn))
        else:
            self._queue.push(session.id, _rank(session), event.at_s)

    def _give_up_copy(self, session: Session) -> None:
        """State that can't be copied is dropped if its memory is needed, else kept."""
        if session.departure_forced:
            session.departure = Departure.DROP
        else:
            session.departure = None

    def _settle(self, session: Session) -> None:
        """Give a session that has stopped moving its place in the indexes."""
        if session.turn is not None:
            self._startable.append(session)
        elif session.residency is Residency.RESIDENT and not session.departure_forced:
            self._ledger.resize(session.id, session.held_tokens)
            self._waiting.setdefault(session.id, session)
        elif session.residency is Residency.ABSENT and session.slot is not None:
            session.departure = Departure.DROP
        if session.departure is not None or session.closed:
            self._leaving.append(session)

    # ---- letting go ------------------------------------------------------------------

    def _let_go_due(self, draft: Draft, now_s: float) -> None:
        while self._timers and self._timers[0][0] <= now_s:
            _, _, session, waits, departure = heapq.heappop(self._timers)
            if session.waits == waits and session.phase is Phase.TOOL:
                self._depart(session, departure)
        while self._leaving:
            self._let_go(self._leaving.popleft(), draft, now_s)

    def _let_go(self, session: Session, draft: Draft, now_s: float) -> None:
        if session.closed:
            session.departure = Departure.DROP
        if session.departure is not None and session.untouched:
            if session.residency is Residency.RESIDENT:
                if session.departure is Departure.DROP or session.clean:
                    self._release(session, draft, now_s)
                else:
                    self._copy(session, draft, now_s)
            elif session.residency is Residency.ABSENT and session.slot is not None:
                self._release(session, draft, now_s)
        if session.closed and session.slot is None:
            self._bury(session, draft, now_s)

    def _release(self, session: Session, draft: Draft, now_s: float) -> None:
        assert session.slot is not None
        event = Released(
            at_s=now_s,
            session=session.id,
            slot=session.slot,
            kept_tokens=session.copied_tokens,
        )
        session.apply(event)
        self._ledger.close(session.id)
        self._waiting.pop(session.id, None)
        if session.id in self._queue:
            self._queue.rerank(session.id, _rank(session))
        draft.release.append(event)

    def _copy(self, session: Session, draft: Draft, now_s: float) -> None:
        assert session.slot is not None
        event = CopyStarted(
            at_s=now_s,
            session=session.id,
            slot=session.slot,
            kv_tokens=session.held_tokens,
        )
        session.apply(event)
        self._moving.add(session.id)
        self._waiting.pop(session.id, None)  # it settles again when the copy is done
        draft.copy.append(event)

    def _bury(self, session: Session, draft: Draft, now_s: float) -> None:
        if self._sessions.pop(session.id, None) is None:
            return
        if session.copied_tokens:
            draft.forget.append(CopyForgotten(at_s=now_s, session=session.id))

    def _forget_useless(self, draft: Draft, now_s: float) -> None:
        useless, self._useless_copies = self._useless_copies, []
        for session in useless:
            if session.residency is Residency.PARKING:
                # A newer copy is in the making under the same key; it may yet fail.
                self._useless_copies.append(session)
            elif not session.copied_tokens:
                draft.forget.append(CopyForgotten(at_s=now_s, session=session.id))

    # ---- admission -------------------------------------------------------------------

    def _reject_hopeless(self, draft: Draft, now_s: float) -> None:
        limit = min(self._capacity.context_tokens, self._capacity.kv_tokens)
        for session, turn in self._hopeless:
            if session.turn is not turn:
                continue  # aborted meanwhile
            reason = (
                f"the turn may come to {turn.tokens} tokens "
                f"({turn.prompt_tokens} of prompt, {turn.max_output_tokens} of "
                f"output); one sequence holds {limit}"
            )
            event = TurnRejected(at_s=now_s, session=session.id, reason=reason)
            session.apply(event)
            self._settle(session)
            draft.reject.append(event)
        self._hopeless.clear()

    def _admit_fitting(self, draft: Draft, now_s: float) -> bool:
        """Admit from the head on; return whether memory stopped it."""
        while len(self._prefilling) < self._settings.max_prefills:
            head = self._queue.head(now_s)
            if head is None:
                return False
            session = self._sessions[head.session]
            if not self._fits(session):
                self._make_room(session, head, draft, now_s)
                if not self._fits(session):
                    return True
            self._take(session, head, draft, now_s)
        return False

    def _growth(self, session: Session) -> int:
        return _needed_tokens(session) - self._ledger.held_tokens(session.id)

    def _fits(self, session: Session) -> bool:
        slot_free = session.slot is not None or self._ledger.free_slots > 0
        return slot_free and self._growth(session) <= self._ledger.free_tokens

    def _take(self, session: Session, head: Head, draft: Draft, now_s: float) -> None:
        self._queue.remove(session.id)
        slot = session.slot
        if slot is None:
            slot = self._ledger.open(session.id, _needed_tokens(session))
        else:
            self._ledger.resize(session.id, _needed_tokens(session))
        admitted = TurnAdmitted(
            at_s=now_s, session=session.id, slot=slot, forced=head.forced
        )
        session.apply(admitted)
        self.forced_admissions += head.forced
        self._prefilling.add(session.id)
        self._startable.append(session)
        draft.admit.append(admitted)
        if session.residency is Residency.PARKED:
            self._restore(session, slot, draft, now_s)

    def _restore(self, session: Session, slot: int, draft: Draft, now_s: float) -> None:
        event = RestoreStarted(
            at_s=now_s, session=session.id, slot=slot, kv_tokens=session.copied_tokens
        )
        session.apply(event)
        self._moving.add(session.id)
        draft.restore.append(event)

    # ---- making room -----------------------------------------------------------------

    def _make_room(
        self, session: Session, head: Head, draft: Draft, now_s: float
    ) -> None:
        """Let victims go until *session* fits or nobody is left who may be asked.

        Waiting sessions go first. Holders in the queue go, youngest first, only for a
        turn past the age bound, or when nothing is in progress that could end the
        deadlock of everyone holding and waiting.
        """
        stuck = not (self._running or self._moving or self._prefilling)
        candidates = self._candidates(session, stuck or head.forced, now_s)
        for victim in choose_victims(candidates, self._lack(session), self._ledger):
            victim.departure = self._policy.departure
            victim.departure_forced = True
            self._let_go(victim, draft, now_s)

    def _lack(self, session: Session) -> Lack:
        """Return what *session* lacks beyond what copies in progress will free."""
        leaving = [
            moving.id
            for moving in map(self._sessions.__getitem__, self._moving)
            if moving.departure is not None
        ]
        coming = sum(map(self._ledger.held_tokens, leaving))
        return Lack(
            tokens=self._growth(session) - self._ledger.free_tokens - coming,
            slots=(session.slot is None) - self._ledger.free_slots - len(leaving),
        )

    def _candidates(
        self, head: Session, queue_too: bool, now_s: float
    ) -> Iterator[Session]:
        for victim in self._policy.victims(self, now_s):
            if victim.residency is Residency.RESIDENT and victim.departure is None:
                yield victim
        if not queue_too:
            return
        for session_id in self._queue.youngest_first():
            holder = self._sessions[session_id]
            if holder is not head and holder.residency is Residency.RESIDENT:
                yield holder

    # ---- starting --------------------------------------------------------------------

    def _start_ready(self, draft: Draft, now_s: float) -> None:
        while self._startable:
            session = self._startable.popleft()
            if not session.ready:
                continue
            assert session.slot is not None
            kind = PrefillStarted if session.phase is Phase.PREFILL else DecodeStarted
            event = kind(at_s=now_s, session=session.id, slot=session.slot)
            had_copy = session.copied_tokens > 0
            session.apply(event)
            if had_copy and session.copied_tokens == 0:
                self._useless_copies.append(session)
            self._running += 1
            draft.start.append(event)

    def _wake_at_s(self, blocked: bool, now_s: float) -> float | None:
        times = [self._timers[0][0]] if self._timers else []
        aged_s = self._queue.next_aged_s() if blocked else None
        if aged_s is not None and aged_s > now_s:
            times.append(aged_s)
        return min(times, default=None)


def _needed_tokens(session: Session) -> int:
    """What the turn may come to; an edited state holds its full length until then."""
    assert session.turn is not None
    return max(session.turn.tokens, session.held_tokens)


def _rank(session: Session) -> Rank:
    if session.slot is not None:
        return Rank.RESIDENT
    return Rank.RETURNING if session.copied_tokens else Rank.NEW
