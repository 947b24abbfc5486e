"""How state leaves the accelerator: by policy, by need, by the end of its session.

Copying and releasing are two acts. State departs as soon as nothing works on it: dirty
state is copied first if it is to be parked, and is released when the copy is there.
"""

import heapq

from .books import Books
from .events import CopyForgotten, CopyStarted, Released
from .plan import Draft
from .policy import Policy
from .session import Departure, Phase, Residency, Session


class Departures:
    """Does what the policy decides about waiting state, and what need dictates."""

    def __init__(self, books: Books, policy: Policy) -> None:
        self._books = books
        self._policy = policy
        self._timers: list[tuple[float, int, Session, int, Departure]] = []
        self._timer_number = 0

    @property
    def next_s(self) -> float | None:
        """When the next retention falls due, if any does."""
        return self._timers[0][0] if self._timers else None

    def begin_wait(self, session: Session, now_s: float) -> None:
        """Ask the policy about a tool wait that has begun."""
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

    def give_up_copy(self, session: Session) -> None:
        """Drop state that can't be copied if its memory is needed, else keep it."""
        session.departure = Departure.DROP if session.departure_forced else None

    def let_go_due(self, draft: Draft, now_s: float) -> None:
        """Let everything go whose time has come and that nothing works on."""
        while self._timers and self._timers[0][0] <= now_s:
            _, _, session, waits, departure = heapq.heappop(self._timers)
            if session.waits == waits and session.phase is Phase.TOOL:
                self._depart(session, departure)
        leaving = self._books.leaving
        while leaving:
            self._let_go(leaving.popleft(), draft, now_s)

    def make_leave(self, victim: Session, draft: Draft, now_s: float) -> None:
        """Let *victim* go because its memory is needed."""
        victim.departure = self._policy.departure
        victim.departure_forced = True
        self._let_go(victim, draft, now_s)

    def forget_useless(self, draft: Draft, now_s: float) -> None:
        """Give up copies that an edit of the history has made useless."""
        useless, self._books.useless_copies = self._books.useless_copies, []
        for session in useless:
            if session.residency is Residency.PARKING:
                # A newer copy is in the making under the same key; it may yet fail.
                self._books.useless_copies.append(session)
            elif not session.copied_tokens:
                draft.forget.append(CopyForgotten(at_s=now_s, session=session.id))

    def _depart(self, session: Session, departure: Departure) -> None:
        session.departure = departure
        session.departure_forced = False
        self._books.leaving.append(session)

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
        self._books.ledger.close(session.id)
        self._books.waits.pop(session.id, None)
        self._books.rerank(session)
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
        self._books.moving.add(session.id)
        self._books.waits.pop(session.id, None)  # it settles when the copy is done
        draft.copy.append(event)

    def _bury(self, session: Session, draft: Draft, now_s: float) -> None:
        if self._books.sessions.pop(session.id, None) is None:
            return
        if session.copied_tokens:
            draft.forget.append(CopyForgotten(at_s=now_s, session=session.id))
