"""Resident sessions that wait, by what they wait for.

Who waits for the same kind of tool has, the longer it has waited, the longer still to
go; so the best victims stand at the front of each kind, and looking at a few of each is
enough, however many wait.

    >>> waits = Waits()
    >>> for name in "abc":
    ...     waits.add(Session(id=SessionId(name)))
    >>> [session.id for session in waits.foremost(2)]
    ['a', 'b']
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice

from .events import SessionId
from .session import Session

USER_KIND = "user"


class Waits:
    """An index of waiting sessions, at O(1) an operation and each one that is yielded.

    Invariant: each session stands once in ``_all`` and once in the group of its kind,
    in the order in which it came to wait.
    """

    def __init__(self) -> None:
        self._all: OrderedDict[SessionId, Session] = OrderedDict()
        self._kinds: dict[SessionId, str] = {}
        self._groups: dict[str, OrderedDict[SessionId, Session]] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def longest_first(self) -> Iterable[Session]:
        """All of them, the longest wait first."""
        return self._all.values()

    def add(self, session: Session) -> None:
        """Take note that *session* waits; it may be told again as it changes tools."""
        self._all.setdefault(session.id, session)
        kind = _kind(session)
        before = self._kinds.get(session.id)
        if before != kind:
            if before is not None:
                self._leave(session.id, before)
            self._kinds[session.id] = kind
            self._groups.setdefault(kind, OrderedDict())[session.id] = session

    def discard(self, session: SessionId) -> None:
        """Take note that *session* waits no more."""
        if self._all.pop(session, None) is not None:
            self._leave(session, self._kinds.pop(session))

    def foremost(self, most: int) -> Iterator[Session]:
        """Yield of each kind the *most* that have waited longest."""
        for group in self._groups.values():
            yield from islice(group.values(), most)

    def __contains__(self, session: SessionId) -> bool:
        return session in self._all

    def _leave(self, session: SessionId, kind: str) -> None:
        group = self._groups[kind]
        del group[session]
        if not group:
            del self._groups[kind]


def _kind(session: Session) -> str:
    calls = session.open_calls
    return next(iter(calls.values())).tool_class if calls else USER_KIND
