"""Everything that the scheduler keeps: who is open, holds, waits, moves, runs.

Departures, admission, the link and the scheduler itself write in these books; nobody
else does.

Invariants: a session with a slot is in the ledger, and no other; ``waits`` holds those
whose state is resident and free to go; ``leaving`` and ``startable`` hold everybody who
*may* have to leave or start, and are looked through by the next plan.
"""

from collections import deque

from .errors import LedgerError, UnknownSession
from .events import CopyLost, Event, SessionId
from .fairness import Service
from .family import lend
from .ledger import Capacity, Ledger
from .queue import AdmissionQueue, Rank
from .session import Departure, Residency, Session
from .waits import Waits

_RECENT = 0.05  # weight of the newest turn in the mean growth


class Books:
    """The state of one accelerator and its sessions, as the scheduler knows it."""

    def __init__(self, *, capacity: Capacity, age_bound_s: float) -> None:
        self.capacity = capacity
        self.ledger = Ledger(slots=capacity.slots, kv_tokens=capacity.kv_tokens)
        self.service = Service()
        self.queue = AdmissionQueue(age_bound_s=age_bound_s, service=self.service)
        self.sessions: dict[SessionId, Session] = {}
        self.waits = Waits()  # resident and without a turn
        self.dirty_waits = Waits()  # those of them whose state the store lacks
        self.leaving: deque[Session] = deque()
        self.startable: deque[Session] = deque()
        self.useless_copies: list[Session] = []
        self.prefilling: set[SessionId] = set()  # admitted, without a first token
        self.prefills_running: set[SessionId] = set()
        self.moving: dict[SessionId, Session] = {}
        self.running = 0
        self._turn_growth_tokens = 0.0

    @property
    def limit_tokens(self) -> int:
        """The most tokens that any one turn can have."""
        return min(self.capacity.context_tokens, self.capacity.kv_tokens)

    @property
    def idle(self) -> bool:
        """Whether nothing is in progress that could free memory by its end."""
        return not (self.running or self.moving or self.prefilling)

    @property
    def growth_tokens(self) -> int:
        """What the resident sessions are going to need for their next turns."""
        return round(self.ledger.holders * self._turn_growth_tokens)

    def note_growth(self, tokens: int) -> None:
        """Take note of what a resident session's turn needed more than it held."""
        self._turn_growth_tokens += _RECENT * (tokens - self._turn_growth_tokens)

    def session(self, session: SessionId) -> Session:
        """Return the session; raise UnknownSession."""
        found = self.sessions.get(session)
        if found is None:
            raise UnknownSession(f"session {session!r} is not open")
        return found

    def enter(self, session: Session, event: Event) -> None:
        """Apply *event* to *session*; note a copy that it has made useless."""
        had_copy, copied_tokens = session.owns_copy, session.copied_tokens
        session.apply(event)
        if had_copy and session.copied_tokens == 0 and not isinstance(event, CopyLost):
            self.useless_copies.append(session)
        if session.children and session.copied_tokens != copied_tokens:
            lend(session, event.at_s)

    def settle(self, session: Session) -> None:
        """Give a session that has stopped moving its place in the indexes."""
        if session.turn is not None:
            self.startable.append(session)
        elif session.residency is Residency.RESIDENT:
            if not session.departure_forced:
                self.ledger.resize(session.id, session.held_tokens)
                self.begin_wait(session)
        elif session.slot is not None and session.residency is not Residency.PARKING:
            session.departure = Departure.DROP  # a slot for a turn that never came
        if session.departure is not None or session.closed:
            self.leaving.append(session)

    def begin_wait(self, session: Session) -> None:
        """Put a session among those that wait, or where it now belongs among them."""
        self.waits.add(session)
        if session.clean:
            self.dirty_waits.discard(session.id)
        else:
            self.dirty_waits.add(session)

    def end_wait(self, session: Session) -> None:
        """Take a session out of those that wait."""
        self.waits.discard(session.id)
        self.dirty_waits.discard(session.id)

    def rerank(self, session: Session) -> None:
        """Tell the queue where the state of a waiting turn is now."""
        if session.id in self.queue:
            self.queue.rerank(session.id, rank(session))

    def check_integrity(self) -> None:
        """Raise LedgerError if the ledger disagrees with the sessions."""
        self.ledger.check_integrity()
        holders = 0
        for session in self.sessions.values():
            held = self.ledger.held_tokens(session.id)
            holders += session.slot is not None
            if session.slot is None and held:
                raise LedgerError(f"{session.id!r} holds {held} tokens without a slot")
            limit = session.copied_tokens if session.slot is None else held
            if not session.copied_tokens <= session.held_tokens <= limit:
                raise LedgerError(
                    f"{session.id!r} has {session.held_tokens} tokens of state, "
                    f"{session.copied_tokens} of them copied, and may have {limit}"
                )
        if holders != self.ledger.holders:
            raise LedgerError(
                f"{holders} sessions have a slot, {self.ledger.holders} are booked"
            )


def rank(session: Session) -> Rank:
    """Return what admitting the session's turn would cost."""
    if session.slot is not None:
        return Rank.RESIDENT
    # Whose state is lost has no more claim than who is new: an engine by itself would
    # take both in the order of arrival.
    parked = session.active and session.copied_tokens > 0
    return Rank.RETURNING if parked else Rank.NEW


def needed_tokens(session: Session) -> int:
    """What the turn may come to; an edited state holds its full length until then."""
    assert session.turn is not None
    return max(session.turn.tokens, session.held_tokens)
