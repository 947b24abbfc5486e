"""Restore-ahead: parked state comes back before its turn does, when that is a good bet.

A parked session whose tool runs is looked at now and then, each time after a quarter
of what it has waited so far, or when its tool is expected to end, if that is sooner.
Its state comes back if nobody waits for memory, the link has nothing to do, there is
room with growth to spare, and its tools end within twice the time of the restore with
at least the policy's probability. A wrong guess costs one transfer, and whoever then
needs the memory takes it: the copy is still in the store.
"""

import heapq

from .books import Books
from .link import Link
from .plan import Draft
from .policy import View
from .session import Phase, Residency, Session

_LATER = 0.25
_HORIZON = 2.0


class Foresight:
    """Watches parked sessions; ``look`` starts the restores that are a good bet."""

    def __init__(
        self, books: Books, view: View, link: Link, probability: float | None
    ) -> None:
        self._books = books
        self._view = view
        self._link = link
        self._probability = probability
        self._looks: list[tuple[float, int, Session, int]] = []
        self._number = 0

    @property
    def next_s(self) -> float | None:
        """When to look next, if at anybody."""
        return self._looks[0][0] if self._looks else None

    def watch(self, session: Session, now_s: float) -> None:
        """Look at a session that has just been parked, from now on."""
        if self._probability is None or not _may_come_back(session, session.waits):
            return
        waited_s = now_s - session.waits_since_s
        left_s = self._view.outlook.remaining_s(session, now_s)
        later_s = min(_LATER * waited_s, left_s - self._horizon_s(session))
        at_s = now_s + max(self._view.retry_s, later_s)
        self._number += 1
        heapq.heappush(self._looks, (at_s, self._number, session, session.waits))

    def look(self, draft: Draft, now_s: float) -> None:
        """Start the restores that are a good bet now."""
        while self._looks and self._looks[0][0] <= now_s:
            _, _, session, waits = heapq.heappop(self._looks)
            if not _may_come_back(session, waits):
                continue
            if self._room_for(session) and self._comes_soon(session, now_s):
                self._link.restore_ahead(session, draft, now_s)
            else:
                self.watch(session, now_s)

    def _room_for(self, session: Session) -> bool:
        books = self._books
        spare_tokens = books.ledger.free_tokens - self._view.growth_tokens
        return (
            not books.queue
            and self._link.idle
            and books.ledger.free_slots > 0
            and session.held_tokens <= spare_tokens
        )

    def _comes_soon(self, session: Session, now_s: float) -> bool:
        assert self._probability is not None
        horizon_s = self._horizon_s(session)
        chance = self._view.outlook.returns_within(session, now_s, horizon_s)
        return chance >= self._probability

    def _horizon_s(self, session: Session) -> float:
        outlook = self._view.outlook
        return _HORIZON * outlook.restore_s(session.held_tokens, session.tier)


def _may_come_back(session: Session, waits: int) -> bool:
    return (
        session.waits == waits
        and session.phase is Phase.TOOL
        and session.residency is Residency.PARKED
        and session.slot is None
        and not session.closed
    )
