"""Turns that wait for admission, in the order in which they should get it.

The order of two turns is decided by the first of these in which they differ:

1. priority, the higher first;
2. rank: resident turns (they need only their growth), then those whose state is parked,
   then new ones. It stands before fairness because a resident turn is nearly free, and
   holds memory for as long as it waits;
3. what the tenant has attained, the least first (``fairness``);
4. what the session has attained, the least first;
5. the order of arrival, so that ties cannot happen.

None of it can delay a turn for ever: one that is older than the age bound, or whose
deadline presses, is urgent and comes before all that are not, the first to become so
first. Nobody becomes urgent before it came, so whoever comes later stays behind.

    >>> queue = AdmissionQueue(age_bound_s=60)
    >>> new, back = SessionId("new"), SessionId("back")
    >>> queue.push(Claim(session=new, rank=Rank.NEW, submitted_s=0.0))
    >>> queue.push(Claim(session=back, rank=Rank.RESIDENT, submitted_s=5.0))
    >>> queue.head(6.0), queue.head(61.0)
    (Head(session='back', forced=False), Head(session='new', forced=True))
    >>> queue.next_urgent_s()
    60.0
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, unique
from typing import NamedTuple

from .errors import IllegalMove, InvalidSetting
from .events import SessionId
from .fairness import KeyedHeap, Service


@unique
class Rank(Enum):
    """What admission would cost the accelerator's memory."""

    RESIDENT = "resident"
    RETURNING = "returning"
    NEW = "new"


_ORDER_OF_RANKS = {Rank.RESIDENT: 0, Rank.RETURNING: 1, Rank.NEW: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A turn's claim to be admitted, as it is when the turn comes.

    A higher ``priority`` goes first. From ``due_s`` on (on the scheduler's clock) the
    turn is urgent, however young. ``attained_s`` is what its session has had so far, in
    accelerator seconds; ``tokens`` is what the turn may come to hold.
    """

    session: SessionId
    rank: Rank
    submitted_s: float
    tenant: str = ""
    priority: int = 0
    due_s: float | None = None
    attained_s: float = 0.0
    tokens: int = 0

    def __post_init__(self) -> None:
        # Anything that compares with nothing (NaN) would put the heaps out of order.
        if type(self.priority) is not int:
            raise InvalidSetting(
                f"the priority of session {self.session!r} must be an integer, "
                f"not {self.priority!r}"
            )
        for name in ("submitted_s", "due_s", "attained_s"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise InvalidSetting(
                    f"{name} of session {self.session!r} must be finite, not {value}"
                )


class Head(NamedTuple):
    """Who is next; ``forced`` if only its age or its deadline put it there."""

    session: SessionId
    forced: bool


@dataclass(slots=True, eq=False)
class _Line:
    """The waiting turns of one tenant with the same priority and rank."""

    priority: int
    rank: Rank
    tenant: str
    entries: KeyedHeap["_Entry"]


@dataclass(slots=True, eq=False)
class _Entry:
    claim: Claim
    number: int
    line: _Line


class AdmissionQueue:
    """Waiting turns; every operation costs O(log n) amortised.

    Invariant: the key under which a line stands in ``_standing`` is never above its
    true one. Only an arrival lowers a true key, and stands the line anew. Departures
    and charges raise it, which ``head`` finds out when the line comes first.
    """

    def __init__(self, *, age_bound_s: float, service: Service | None = None) -> None:
        self.age_bound_s = age_bound_s
        self._service = Service() if service is None else service
        self._entries: dict[SessionId, _Entry] = {}
        self._residents: dict[SessionId, _Entry] = {}  # in the order of arrival
        self._lines: dict[tuple[int, Rank, str], _Line] = {}
        self._standing: KeyedHeap[_Line] = KeyedHeap()
        self._by_age: KeyedHeap[_Entry] = KeyedHeap()
        self._by_due: KeyedHeap[_Entry] = KeyedHeap()
        self._counts = dict.fromkeys(Rank, 0)
        self._tokens = 0
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, session: SessionId) -> bool:
        return session in self._entries

    @property
    def age_bound_s(self) -> float:
        """A turn older than this goes before all; it may be changed at any time."""
        return self._age_bound_s

    @age_bound_s.setter
    def age_bound_s(self, age_bound_s: float) -> None:
        if not age_bound_s >= 0:
            raise InvalidSetting(f"age_bound_s must not be negative, got {age_bound_s}")
        self._age_bound_s = age_bound_s

    def push(self, claim: Claim) -> None:
        """Add a turn; raise IllegalMove if its session has one in the queue."""
        if claim.session in self._entries:
            raise IllegalMove(f"session {claim.session!r} has a turn waiting already")
        self._number += 1
        line = self._line(claim.priority, claim.rank, claim.tenant)
        entry = _Entry(claim, self._number, line)
        self._entries[claim.session] = entry
        self._by_age.put(entry, (claim.submitted_s, entry.number))
        if claim.due_s is not None:
            due_s = max(claim.due_s, claim.submitted_s)
            self._by_due.put(entry, (due_s, entry.number))
        self._service.enter(claim.tenant)
        self._tokens += claim.tokens
        self._join(entry)

    def rerank(self, session: SessionId, rank: Rank) -> None:
        """Change the rank of a waiting turn; its age stays. Raise IllegalMove."""
        entry = self._entry(session)
        if entry.line.rank is not rank:
            self._quit(entry)
            entry.line = self._line(entry.claim.priority, rank, entry.claim.tenant)
            self._join(entry)
            if rank is Rank.RESIDENT:  # it may have come before others of them
                by_arrival = sorted(self._residents.values(), key=_number)
                self._residents = {each.claim.session: each for each in by_arrival}

    def remove(self, session: SessionId) -> None:
        """Take a turn out; raise IllegalMove if there is none."""
        entry = self._entry(session)
        del self._entries[session]
        self._by_age.discard(entry)
        self._by_due.discard(entry)
        self._quit(entry)
        self._service.leave(entry.claim.tenant)
        self._tokens -= entry.claim.tokens

    def head(self, now_s: float) -> Head | None:
        """Return who is next, or None."""
        first = self._first_in_order()
        if first is None:
            return None
        urgent_s, urgent = self._first_urgent()
        if urgent is not first and now_s >= urgent_s:
            return Head(urgent.claim.session, True)
        return Head(first.claim.session, False)

    def followers(self, most: int) -> list[SessionId]:
        """Return some of those who come soon, about in their order, not only the head.

        Costs O(most log most), whatever waits.
        """
        lines = self._standing.smallest(most)
        entries = [entry for line in lines for entry in line.entries.smallest(most)]
        entries.sort(key=lambda entry: self._key(entry.line, entry))
        return [entry.claim.session for entry in entries[:most]]

    def next_urgent_s(self) -> float | None:
        """Return from when the head is another one, or None if time won't change it.

        It may be past. Arrivals, departures and charges change it; ask again.
        """
        first = self._first_in_order()
        if first is None:
            return None
        urgent_s, urgent = self._first_urgent()
        return None if urgent is first or math.isinf(urgent_s) else urgent_s

    def youngest_residents(self) -> Iterator[SessionId]:
        """Yield those who hold memory while they wait, the last to arrive first."""
        return iter(reversed(self._residents))

    def count(self, rank: Rank) -> int:
        """Return how many turns of *rank* wait."""
        return self._counts[rank]

    @property
    def tokens(self) -> int:
        """What the waiting turns may come to hold together."""
        return self._tokens

    def oldest_submitted_s(self) -> float | None:
        """Return when the oldest of the waiting turns was submitted, or None."""
        oldest = self._by_age.first()
        return None if oldest is None else oldest.claim.submitted_s

    def _entry(self, session: SessionId) -> _Entry:
        entry = self._entries.get(session)
        if entry is None:
            raise IllegalMove(f"session {session!r} has no turn waiting")
        return entry

    # ---- the order -------------------------------------------------------------------

    def _line(self, priority: int, rank: Rank, tenant: str) -> _Line:
        name = (priority, rank, tenant)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(*name, KeyedHeap())
        return line

    def _join(self, entry: _Entry) -> None:
        line = entry.line
        self._counts[line.rank] += 1
        if line.rank is Rank.RESIDENT:
            self._residents[entry.claim.session] = entry
        line.entries.put(entry, (entry.claim.attained_s, entry.number))
        key = self._key(line, entry)
        if len(line.entries) == 1 or key < self._standing.key(line):
            self._standing.put(line, key)

    def _quit(self, entry: _Entry) -> None:
        line = entry.line
        self._counts[line.rank] -= 1
        self._residents.pop(entry.claim.session, None)
        line.entries.discard(entry)
        if not line.entries:
            self._standing.discard(line)
            del self._lines[line.priority, line.rank, line.tenant]

    def _key(self, line: _Line, entry: _Entry) -> tuple[float, ...]:
        return (
            -line.priority,
            _ORDER_OF_RANKS[line.rank],
            self._service.attained_s(line.tenant),
            entry.claim.attained_s,
            entry.number,
        )

    def _first_in_order(self) -> _Entry | None:
        while (line := self._standing.first()) is not None:
            entry = line.entries.first()
            assert entry is not None  # a line without entries stands nowhere
            key = self._key(line, entry)
            if key == self._standing.key(line):
                return entry
            self._standing.put(line, key)
        return None

    def _first_urgent(self) -> tuple[float, _Entry]:
        """Return who is urgent first, and from when; somebody must wait."""
        oldest = self._by_age.first()
        assert oldest is not None
        aged_s = oldest.claim.submitted_s + self._age_bound_s
        due = self._by_due.first()
        if due is not None and self._by_due.key(due)[0] < aged_s:
            return self._by_due.key(due)[0], due
        return aged_s, oldest


def _number(entry: _Entry) -> int:
    return entry.number
