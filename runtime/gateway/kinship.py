"""Which lane a call belongs to: one that it continues, repeats or edits, or a new one.

A session id is no key of a KV state: under one id come an agent's own calls, calls for
a title, subagents. What tells them apart is what they begin with (``Lineage``). So each
session (of a tenant, and of an agent where clients name one) has lanes, one for each
conversation, and a call goes to

* the lane whose last call it repeats or goes on from, the longest of these;
* else the lane whose conversation it has changed, if that lane waits for nothing, or if
  the call brings results back or says that it has been compacted;
* else a lane of its own, so that a side call does not disturb the main one.

Clients that send no id have one session for all their calls, so nothing here looks at
every lane of a session.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, unique
from typing import Generic, TypeVar

from ..wire.lineage import Lineage

Name = TypeVar("Name", bound=Hashable)

# Head and first message. Calls that share the head alone are other conversations of
# the same agent.
_KIN_COUNT = 2


@unique
class Kinship(Enum):
    """How a call is related to the lane that it goes to."""

    CONTINUES = "continues"  # all of the lane's last call, and more
    REPEATS = "repeats"  # the lane's last call, again
    EDITS = "edits"  # some of it; what is beyond that is of no use any more
    NEW = "new"  # nothing, it gets a lane of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(Generic[Name]):
    """Where a call goes; ``shared`` digests are those of the lane's last call.

    ``lane`` is None where the call is new.
    """

    kinship: Kinship
    lane: Name | None = None
    shared: int = 0


class Kin(Generic[Name]):
    """The lanes of one session, by what their last calls were."""

    def __init__(self) -> None:
        self._lanes: dict[Name, Lineage] = {}
        self._by_tail: dict[bytes, list[Name]] = {}
        self._by_start: dict[bytes, list[Name]] = {}
        self._waits: set[Name] = set()

    def __len__(self) -> int:
        return len(self._lanes)

    def called(self, lane: Name, lineage: Lineage) -> None:
        """Take note of the last call of *lane*, a new one or one that is known."""
        self.forget(lane)
        self._lanes[lane] = lineage
        self._by_tail.setdefault(lineage.tail, []).append(lane)
        self._by_start.setdefault(_start(lineage), []).append(lane)

    def waits(self, lane: Name, waits: bool) -> None:
        """Take note of whether *lane* waits for tools, or for an answer."""
        if waits:
            self._waits.add(lane)
        else:
            self._waits.discard(lane)

    def forget(self, lane: Name) -> None:
        """Let *lane* go, if it is known."""
        self._waits.discard(lane)
        lineage = self._lanes.pop(lane, None)
        if lineage is None:
            return
        for index, digest in (
            (self._by_tail, lineage.tail),
            (self._by_start, _start(lineage)),
        ):
            index[digest].remove(lane)
            if not index[digest]:
                del index[digest]

    def match(
        self, call: Lineage, *, brings_results: bool = False, compacted: bool = False
    ) -> Match[Name]:
        """Return where *call* goes. It changes nothing: ``called`` does."""
        # The head alone is no past: all conversations of an agent have it.
        for index in reversed(range(1, call.count)):
            lanes = self._by_tail.get(call[index])
            if lanes and index + 1 == call.count:
                return _to(Kinship.REPEATS, lanes[-1], call.count)
            if lanes:
                return _to(Kinship.CONTINUES, lanes[-1], index + 1)
        edited = self._edited(call, brings_results or compacted)
        if edited is None and compacted:
            # A summary shares with what it sums up the head, if that.
            edited = self._compacted(call)
        return edited or Match(kinship=Kinship.NEW)

    def _edited(self, call: Lineage, waiting_too: bool) -> Match[Name] | None:
        """Return the lane that shares most with *call* and may be changed by it."""
        best: Match[Name] | None = None
        for lane in self._by_start.get(_start(call), ()):
            if lane in self._waits and not waiting_too:
                continue
            shared = self._lanes[lane].shared(call)
            if shared >= _KIN_COUNT and (best is None or shared >= best.shared):
                best = _to(Kinship.EDITS, lane, shared)
        return best

    def _compacted(self, call: Lineage) -> Match[Name] | None:
        """Return the longest lane: it is the one that had become too long."""
        if not self._lanes:
            return None
        lane = max(self._lanes, key=lambda lane: self._lanes[lane].count)
        return _to(Kinship.EDITS, lane, self._lanes[lane].shared(call))


def _start(lineage: Lineage) -> bytes:
    """Return the digest that all calls of one conversation have in common."""
    return lineage[min(_KIN_COUNT, lineage.count) - 1]


def _to(kinship: Kinship, lane: Name, shared: int) -> Match[Name]:
    return Match(kinship=kinship, lane=lane, shared=shared)
