"""The link between accelerator and store: what moves over it, one thing at a time.

Two transfers at once would each take twice as long, and nothing could be overtaken. So
the scheduler keeps the line itself: restores of admitted turns first, then copies of
state whose memory is wanted, then, if the policy says so, copies ahead of any need.

A long copy is cut into slices, where those cost the backend no more together: what has
been copied stays copied, and whoever comes meanwhile waits for a slice at most.
"""

import math
from collections import OrderedDict, deque
from itertools import islice

from .books import Books
from .events import CopyStarted, RestoreStarted, SessionId
from .plan import Draft
from .policy import Policy, View
from .session import Departure, Residency, Session

_SLICE_S = 0.25
_COUNTED = 64  # of a longer line, the rest is estimated from these


class Link:
    """The line of transfers that are wanted; ``pump`` starts what can start."""

    def __init__(
        self, books: Books, policy: Policy, view: View, max_moves: int
    ) -> None:
        self._books = books
        self._policy = policy
        self._view = view
        self._outlook = view.outlook
        self._max_moves = max_moves
        self._restores: deque[Session] = deque()
        self._copies: OrderedDict[SessionId, Session] = OrderedDict()
        self._nobody_until_s = -math.inf  # whose state is worth copying behind

    @property
    def idle(self) -> bool:
        """Whether nothing moves and nothing is wanted to."""
        return not (self._books.moving or self._restores or self._copies)

    @property
    def due(self) -> bool:
        """Whether something is wanted and could start now."""
        if len(self._books.moving) >= self._max_moves:
            return False
        return bool(self._restores or self._copies)

    @property
    def backlog_s(self) -> float:
        """How long the link has to work for what is wanted of it already."""
        outlook = self._outlook
        moving = sum(
            outlook.restore_s(session.copied_tokens, session.tier)
            if session.residency is Residency.RESTORING
            else outlook.save_s(session.dirty_tokens)
            for session in self._books.moving.values()
        )
        restores = sum(
            outlook.restore_s(session.copied_tokens, session.tier)
            for session in self._restores
        )
        copies = sum(
            outlook.save_s(session.dirty_tokens)
            for session in islice(self._copies.values(), _COUNTED)
        )
        scale = max(1.0, len(self._copies) / _COUNTED)
        return moving / 2 + restores + copies * scale

    def leaving(self) -> list[Session]:
        """Return those whose memory comes free by copies that are wanted or running."""
        moving = [s for s in self._books.moving.values() if s.departure is not None]
        return moving + [s for s in self._copies.values() if _must_copy(s)]

    def want_restore(self, session: Session) -> None:
        """Bring the state of an admitted turn back as soon as possible."""
        self._restores.append(session)

    def want_copy(self, session: Session) -> None:
        """Copy the state of a session that has to leave."""
        self._copies[session.id] = session

    def pump(self, draft: Draft, now_s: float) -> None:
        """Start as many transfers as may run at once."""
        books = self._books
        while len(books.moving) < self._max_moves:
            if self._restores:
                self._restore(self._restores.popleft(), draft, now_s)
            elif self._copies:
                _, leaving = self._copies.popitem(last=False)
                if _must_copy(leaving):
                    self._copy(leaving, draft, now_s)
            else:
                if now_s < self._nobody_until_s:
                    return
                idle = self._policy.copy_behind(self._view, now_s)
                if idle is None:
                    self._nobody_until_s = now_s + self._view.retry_s
                    return
                self._copy(idle, draft, now_s)

    def restore_ahead(self, session: Session, draft: Draft, now_s: float) -> None:
        """Bring state back whose turn has not come yet; its memory must be free."""
        self._books.ledger.open(session.id, session.held_tokens)
        self._restore(session, draft, now_s, ahead=True)

    def _restore(
        self, session: Session, draft: Draft, now_s: float, *, ahead: bool = False
    ) -> None:
        if session.residency is not Residency.PARKED:
            self._books.startable.append(session)  # its copy is lost, or its turn
            return
        slot = self._books.ledger.slot(session.id)
        if slot is None:
            return
        event = RestoreStarted(
            at_s=now_s,
            session=session.id,
            slot=slot,
            kv_tokens=session.copied_tokens,
            ahead=ahead,
            source=session.source,
        )
        session.apply(event)
        self._books.moving[session.id] = session
        draft.restore.append(event)

    def _copy(self, session: Session, draft: Draft, now_s: float) -> None:
        assert session.slot is not None
        rows = self._books.capacity.exports_rows
        event = CopyStarted(
            at_s=now_s,
            session=session.id,
            slot=session.slot,
            kv_tokens=self._slice_end(session),
            first_token=session.copied_tokens if rows else 0,
        )
        session.apply(event)
        self._books.moving[session.id] = session
        draft.copy.append(event)

    def _slice_end(self, session: Session) -> int:
        """Return up to which token to copy: as far as a slice's time takes."""
        if not self._books.capacity.exports_slices:
            return session.held_tokens
        dirty_tokens = session.dirty_tokens
        slices = max(1, round(self._outlook.save_s(dirty_tokens) / _SLICE_S))
        return session.copied_tokens + -(-dirty_tokens // slices)


def _must_copy(session: Session) -> bool:
    """Whether a copy is still wanted; it may be needed again, or gone, by now."""
    return (
        session.departure is Departure.PARK
        and session.residency is Residency.RESIDENT
        and session.untouched
        and not session.clean
    )
