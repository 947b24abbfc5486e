"""How state leaves the accelerator: by policy, by need, by the end of its session.

Copying and releasing are two acts. State departs as soon as nothing works on it: dirty
state is copied first if it is to be parked, and is released when the copy is there.
"""

import heapq

from .books import Books
from .events import CopyForgotten, Released
from .link import Link
from .plan import Draft
from .policy import Policy, Victim, View
from .session import Departure, Phase, Residency, Session


class Departures:
    """Does what the policy decides about waiting state, and what need dictates."""

    def __init__(self, books: Books, policy: Policy, view: View, link: Link) -> None:
        self._books = books
        self._policy = policy
        self._view = view
        self._link = link
        self._timers: list[tuple[float, int, Session, int, Departure]] = []
        self._timer_number = 0

    @property
    def next_s(self) -> float | None:
        """When the next retention falls due, if any does."""
        return self._timers[0][0] if self._timers else None

    def begin_wait(self, session: Session, now_s: float) -> None:
        """Ask the policy about a tool wait that has begun."""
        retention = self._policy.on_wait(session, self._view, now_s)
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

    def give_up_copy(self, session: Session) -> None:
        """Drop state that can't be copied if its memory is needed, else keep it."""
        gone = session.departure_forced or session.closed
        session.departure = Departure.DROP if gone else None

    def let_go_due(self, draft: Draft, now_s: float) -> None:
        """Let everything go whose time has come and that nothing works on."""
        while self._timers and self._timers[0][0] <= now_s:
            _, _, session, waits, departure = heapq.heappop(self._timers)
            if session.waits == waits and session.phase is Phase.TOOL:
                self._depart(session, departure)
        leaving = self._books.leaving
        while leaving:
            self._let_go(leaving.popleft(), draft, now_s)

    def make_leave(self, victim: Victim, draft: Draft, now_s: float) -> None:
        """Let a victim go because its memory is needed."""
        session = victim.session
        session.departure = victim.departure or self._cheaper(session)
        session.departure_forced = True
        if victim.demoted:
            session.active = False
        self._let_go(session, draft, now_s)

    def forget_useless(self, draft: Draft, now_s: float) -> None:
        """Give up copies that an edit of the history has made useless."""
        useless, self._books.useless_copies = self._books.useless_copies, []
        for session in useless:
            if session.residency is Residency.PARKING:
                # A newer copy is in the making under the same key; it may yet fail.
                self._books.useless_copies.append(session)
            elif not session.copied_tokens:
                draft.forget.append(CopyForgotten(at_s=now_s, session=session.id))

    def _cheaper(self, session: Session) -> Departure:
        """Return how the state costs less, there and back."""
        view = self._view
        if not self._books.capacity.exports_kv:
            return Departure.DROP
        parked_s = view.backlog_s + view.outlook.parked_s(session)
        return (
            Departure.PARK
            if parked_s <= view.outlook.dropped_s(session)
            else Departure.DROP
        )

    def _depart(self, session: Session, departure: Departure) -> None:
        session.departure = departure
        session.departure_forced = False
        self._books.leaving.append(session)

    def _let_go(self, session: Session, draft: Draft, now_s: float) -> None:
        if session.departure is not None and session.untouched:
            if session.residency is Residency.RESIDENT:
                dropped = session.departure is Departure.DROP
                if dropped or session.clean or not self._books.capacity.exports_kv:
                    self._release(session, draft, now_s)
                else:
                    self._link.want_copy(session)
            elif session.slot is not None and session.residency in _EMPTY_SLOT:
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
        self._books.ledger.close(session.id)
        self._books.end_wait(session)
        self._books.rerank(session)
        draft.release.append(event)

    def _bury(self, session: Session, draft: Draft, now_s: float) -> None:
        if self._books.sessions.pop(session.id, None) is None:
            return
        if session.owns_copy and not session.kept:
            draft.forget.append(CopyForgotten(at_s=now_s, session=session.id))


# A slot whose session's state is not on it: it was given for work that never came.
_EMPTY_SLOT = frozenset((Residency.ABSENT, Residency.PARKED))
