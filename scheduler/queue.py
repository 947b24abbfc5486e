"""Turns that wait for admission, in the order in which they should get it.

Resident turns come first (they need only their growth), then those whose state is
parked, then new ones; within a rank the oldest first. A turn older than the age bound
comes before all, so that rank delays nobody for ever. Ties cannot happen: every turn
has a number of its own.

    >>> queue = AdmissionQueue(age_bound_s=60)
    >>> queue.push(SessionId("new"), Rank.NEW, 0.0)
    >>> queue.push(SessionId("back"), Rank.RESIDENT, 5.0)
    >>> queue.head(6.0), queue.head(61.0)
    (Head(session='back', forced=False), Head(session='new', forced=True))
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, unique
from typing import NamedTuple

from .events import SessionId


@unique
class Rank(Enum):
    """What admission would cost the accelerator's memory."""

    RESIDENT = "resident"
    RETURNING = "returning"
    NEW = "new"


_URGENCY = {Rank.RESIDENT: 0, Rank.RETURNING: 1, Rank.NEW: 2}


class Head(NamedTuple):
    """Who is next; ``forced`` if its age alone put it there."""

    session: SessionId
    forced: bool


@dataclass(slots=True, eq=False)
class _Entry:
    session: SessionId
    number: int
    rank: Rank
    submitted_s: float


class AdmissionQueue:
    """Waiting turns; push, remove and head cost O(log n).

    Invariant: ``_by_age`` holds each waiting session once, oldest first; ``_by_rank``
    holds at least one element per entry, stale ones are skipped when they surface.
    """

    def __init__(self, *, age_bound_s: float) -> None:
        self._age_bound_s = age_bound_s
        self._by_age: OrderedDict[SessionId, _Entry] = OrderedDict()
        self._by_rank: list[tuple[int, int, _Entry]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._by_age)

    def __contains__(self, session: SessionId) -> bool:
        return session in self._by_age

    def push(self, session: SessionId, rank: Rank, submitted_s: float) -> None:
        """Add a turn; it must not be in the queue."""
        self._number += 1
        entry = _Entry(session, self._number, rank, submitted_s)
        self._by_age[session] = entry
        heapq.heappush(self._by_rank, (_URGENCY[rank], entry.number, entry))

    def rerank(self, session: SessionId, rank: Rank) -> None:
        """Change the rank of a waiting turn; it keeps its age."""
        entry = self._by_age[session]
        if entry.rank is not rank:
            entry.rank = rank
            heapq.heappush(self._by_rank, (_URGENCY[rank], entry.number, entry))

    def remove(self, session: SessionId) -> None:
        """Take a turn out."""
        del self._by_age[session]

    def head(self, now_s: float) -> Head | None:
        """Return who is next, or None."""
        if not self._by_age:
            self._by_rank.clear()
            return None
        first = self._first_by_rank()
        oldest = next(iter(self._by_age.values()))
        if oldest is not first and now_s >= oldest.submitted_s + self._age_bound_s:
            return Head(oldest.session, True)
        return Head(first.session, False)

    def next_aged_s(self) -> float | None:
        """Return when the oldest turn reaches the age bound, or None."""
        if not self._by_age:
            return None
        return next(iter(self._by_age.values())).submitted_s + self._age_bound_s

    def youngest_first(self) -> Iterator[SessionId]:
        """Yield the waiting sessions from the tail."""
        return iter(reversed(self._by_age))

    def _first_by_rank(self) -> _Entry:
        while True:
            urgency, _, entry = self._by_rank[0]
            current = self._by_age.get(entry.session) is entry
            if current and _URGENCY[entry.rank] == urgency:
                return entry
            heapq.heappop(self._by_rank)
