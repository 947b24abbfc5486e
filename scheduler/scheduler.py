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

import math
from dataclasses import dataclass

from .admission import Admission
from .books import Books, needed_tokens
from .chunks import Chunks
from .cost import CostModel
from .departures import Departures
from .errors import IllegalMove, InvalidSetting
from .events import (
    Copied,
    CopyFailed,
    CopyLost,
    DecodeDone,
    DecodeStarted,
    EngineRestarted,
    Event,
    PrefillAdvanced,
    PrefillDone,
    PrefillStarted,
    Restored,
    RestoreFailed,
    SessionClosed,
    SessionId,
    SessionOpened,
    ToolEnded,
    ToolStarted,
    TurnAborted,
    TurnSubmitted,
)
from .family import adopt, leave
from .foresight import Foresight
from .history import History
from .latency import LatencyModel
from .ledger import Capacity
from .link import Link
from .outlook import Outlook
from .plan import Draft, Plan
from .policy import Policy
from .session import Phase, Session
from .sight import Sight


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """``max_prefills`` turns at most compute their prompt at a time.

    More of them at once delay each other's first token and every running decode. A turn
    older than ``age_bound_s`` goes before all others; None derives it from the workload
    (``pace``). ``max_moves`` transfers at most run between accelerator and store. With
    ``target_itl_s``, prefills are cut so that the time between two tokens of a running
    answer stays below it, where the engine is fast enough for that at all.
    """

    max_prefills: int = 1
    max_moves: int = 1
    target_itl_s: float | None = None
    age_bound_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_prefills < 1:
            raise InvalidSetting(
                f"max_prefills must be at least 1, not {self.max_prefills}"
            )
        if self.target_itl_s is not None and not self.target_itl_s > 0:
            raise InvalidSetting(
                f"target_itl_s must be positive, got {self.target_itl_s}"
            )
        if self.max_moves < 1:
            raise InvalidSetting(f"max_moves must be at least 1, not {self.max_moves}")
        if self.age_bound_s is not None and not self.age_bound_s >= 0:
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
        latency: LatencyModel | None = None,
        cost: CostModel | None = None,
    ) -> None:
        settings = settings or SchedulerSettings()
        self._policy = policy
        bound_s = settings.age_bound_s
        self._books = Books(
            capacity=capacity, age_bound_s=60.0 if bound_s is None else bound_s
        )
        self._outlook = Outlook(
            latency=latency or LatencyModel(),
            cost=cost or CostModel(),
            bytes_per_token=capacity.bytes_per_token,
        )
        self._history = History()
        view = Sight(self._books, self._outlook, self._history)
        self._link = view.link = Link(self._books, policy, view, settings.max_moves)
        self._departures = Departures(self._books, policy, view, self._link)
        self._foresight = Foresight(self._books, view, self._link, policy.traits.ahead)
        self._admission = Admission(
            self._books,
            policy,
            view,
            self._departures,
            self._link,
            settings.max_prefills,
            settings.age_bound_s,
        )
        self._max_prefills = settings.max_prefills
        self._chunks = Chunks(self._outlook, settings.target_itl_s)

    # ---- for telemetry and tests -----------------------------------------------------

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return len(self._books.sessions)

    @property
    def queued_turns(self) -> int:
        """How many turns wait for admission."""
        return len(self._books.queue)

    @property
    def held_demand_tokens(self) -> int:
        """KV tokens that the turns in the queue ask for.

        While it stays above zero, another accelerator would have work at once: the
        signal to scale by.
        """
        return self._books.queue.tokens

    @property
    def reserved_tokens(self) -> int:
        """KV tokens that are reserved now."""
        return self._books.ledger.reserved_tokens

    @property
    def forced_admissions(self) -> int:
        """How many turns only the age bound got in."""
        return self._admission.forced

    @property
    def outlook(self) -> Outlook:
        """What waits, moves and prefills are expected to take here."""
        return self._outlook

    def has_room(self, tokens: int) -> bool:
        """Whether a new turn of so many tokens would be let in at once."""
        ledger = self._books.ledger
        fits = ledger.free_slots > 0 and ledger.free_tokens >= tokens
        return fits and not self._books.queue

    def session(self, session: SessionId) -> Session:
        """Return the session, read only; raise UnknownSession."""
        return self._books.session(session)

    def check_integrity(self) -> None:
        """Raise LedgerError if the books disagree with the sessions."""
        self._books.check_integrity()

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
        books = self._books
        session = books.session(event.session)
        turn, waits, attained_s = session.turn, session.waits, session.attained_s
        was_running = turn is not None and turn.running
        self._outlook.hear(session, event)
        self._history.hear(session, event)
        books.enter(session, event)
        if was_running and (session.turn is None or not session.turn.running):
            books.running -= 1
        if session.attained_s > attained_s:
            books.service.charge(
                session.tenant,
                service_s=session.attained_s - attained_s,
                weight=session.weight,
            )
        if session.waits != waits:
            self._departures.begin_wait(session, now_s)
        self._follow(session, event)

    def plan(self, now_s: float) -> Plan:
        """Return what to do now; it is entered in the books already."""
        if self._nothing_due(now_s):
            wake_at_s = self._next_due_s
            return _NOTHING if wake_at_s is None else Plan(wake_at_s=wake_at_s)
        draft = Draft()
        self._admission.reject_hopeless(draft, now_s)
        self._departures.let_go_due(draft, now_s)
        self._start_ready(draft, now_s)
        blocked = self._admission.admit_fitting(draft, now_s)
        self._foresight.look(draft, now_s)
        self._link.pump(draft, now_s)
        self._start_ready(draft, now_s)
        for released in draft.release:
            session = self._books.sessions.get(released.session)
            if session is not None:
                self._foresight.watch(session, now_s)
        self._departures.forget_useless(draft, now_s)
        return draft.finish(self._wake_at_s(blocked, now_s))

    # ---- following events ------------------------------------------------------------

    def _open(self, event: SessionOpened) -> None:
        sessions = self._books.sessions
        if event.session in sessions:
            raise IllegalMove(f"session {event.session!r} is open already")
        if not (math.isfinite(event.weight) and event.weight > 0):
            raise InvalidSetting(
                f"the weight of session {event.session!r} must be positive and finite, "
                f"not {event.weight}"
            )
        if type(event.priority) is not int:
            raise InvalidSetting(
                f"the priority of session {event.session!r} must be an integer, "
                f"not {event.priority!r}"
            )
        if event.forked_tokens < 0:
            raise InvalidSetting(
                f"session {event.session!r} cannot begin with {event.forked_tokens} "
                "tokens"
            )
        session = sessions[event.session] = Session(
            id=event.session,
            parent=event.parent,
            tenant=event.tenant,
            weight=event.weight,
            priority=event.priority,
            blocking=event.blocking,
            forked_tokens=event.forked_tokens,
        )
        parent = self._parent(session)
        if parent is not None:
            adopt(parent, session, event.at_s)

    def _parent(self, session: Session) -> Session | None:
        """Return its parent, if that is known and open."""
        if session.parent is None or session.parent == session.id:
            return None
        return self._books.sessions.get(session.parent)

    def _lose_residents(self, event: EngineRestarted) -> None:
        for holder in self._books.ledger.sessions:
            session = self._books.sessions[holder]
            session.apply(event)
            if session.departure is not None:
                self._books.leaving.append(session)

    def _follow(self, session: Session, event: Event) -> None:
        """Bring queue, ledger and indexes in line with what has happened."""
        books = self._books
        match event:
            case TurnSubmitted():
                self._admission.enqueue(session)
            case PrefillAdvanced():
                books.prefills_running.discard(session.id)
                books.startable.append(session)
            case PrefillDone():
                books.prefilling.discard(session.id)
                books.prefills_running.discard(session.id)
                books.ledger.resize(session.id, needed_tokens(session))
                books.startable.append(session)
            case TurnAborted():
                books.prefilling.discard(session.id)
                books.prefills_running.discard(session.id)
                if session.id in books.queue:
                    books.queue.remove(session.id)
                books.settle(session)
            case Copied() | CopyFailed():
                books.moving.pop(session.id, None)
                if isinstance(event, CopyFailed):
                    self._departures.give_up_copy(session)
                books.settle(session)
            case Restored() | RestoreFailed():
                books.moving.pop(session.id, None)
                books.settle(session)
            case DecodeDone():
                books.settle(session)
            case SessionClosed():
                leave(session, self._parent(session), event.at_s)
                books.settle(session)
            case ToolStarted() | ToolEnded():
                if session.id in books.waits:
                    books.begin_wait(session)
            case CopyLost():
                books.rerank(session)
                if session.id in books.waits:
                    books.begin_wait(session)
            case _:
                pass

    # ---- planning --------------------------------------------------------------------

    def _nothing_due(self, now_s: float) -> bool:
        books, due_s = self._books, self._next_due_s
        return not (
            books.leaving
            or books.startable
            or books.queue
            or books.useless_copies
            or self._admission.rejections_due
            or self._link.due
            or (due_s is not None and due_s <= now_s)
        )

    @property
    def _next_due_s(self) -> float | None:
        due_s, look_s = self._departures.next_s, self._foresight.next_s
        if due_s is None or look_s is None:
            return look_s if due_s is None else due_s
        return min(due_s, look_s)

    def _start_ready(self, draft: Draft, now_s: float) -> None:
        books = self._books
        held_back: list[Session] = []
        most = self._chunks.most_prefills(self._max_prefills)
        while books.startable:
            session = books.startable.popleft()
            if not session.ready:
                continue
            prefills = session.phase is Phase.PREFILL
            if prefills and len(books.prefills_running) >= most:
                held_back.append(session)
                continue
            self._start(session, draft, now_s)
            if prefills:
                books.prefills_running.add(session.id)
        books.startable.extend(held_back)

    def _start(self, session: Session, draft: Draft, now_s: float) -> None:
        slot = session.slot
        assert slot is not None
        event: PrefillStarted | DecodeStarted
        if session.phase is Phase.PREFILL:
            until_tokens = self._chunks.until_tokens(session)
            event = PrefillStarted(
                at_s=now_s, session=session.id, slot=slot, until_tokens=until_tokens
            )
        else:
            event = DecodeStarted(at_s=now_s, session=session.id, slot=slot)
        self._outlook.hear(session, event)
        self._history.hear(session, event)
        self._books.enter(session, event)
        self._books.running += 1
        draft.start.append(event)

    def _wake_at_s(self, blocked: bool, now_s: float) -> float | None:
        """Return when time alone may change what to do."""
        times = [self._next_due_s]
        if blocked:
            queue = self._books.queue
            oldest_s = queue.oldest_submitted_s()
            times.append(queue.next_urgent_s())
            times.append(None if oldest_s is None else oldest_s + queue.age_bound_s)
            times.append(self._admission.retry_s)
        return min((at_s for at_s in times if at_s and at_s > now_s), default=None)
