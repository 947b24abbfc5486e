"""What happened last, sample by sample, for rules that are computed from samples.

``outlook`` says what is to be expected; the rules of other systems have estimators of
their own, and are compared at their best only with those. Everything is counted in a
bounded window, except how many turns sessions have, which is a few sums.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Sequence

from .events import (
    DecodeDone,
    Event,
    PrefillStarted,
    SessionClosed,
    SessionId,
    ToolEnded,
    TurnSubmitted,
)
from .session import Session

_RECENT = 100
_CALLS_PER_TOOL = 500
_CALLS = 1_000
_TOOLS = 1_000


class History:
    """Samples of waits, queues and calls, the newest last.

    ``gaps_s`` are the times between the end of a session's turn and the submission of
    its next one, ``queues_s`` those from a turn's submission to the start of its
    prefill, ``calls_s`` what tool calls took; the cancelled ones are left out.
    """

    def __init__(self) -> None:
        self.gaps_s: deque[float] = deque(maxlen=_RECENT)
        self.queues_s: deque[float] = deque(maxlen=_RECENT)
        self.calls_s: deque[float] = deque(maxlen=_CALLS)
        self._of_tool: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()
        self._open: dict[SessionId, _Open] = {}
        self._arrivals = 0
        self._turns = _TurnCounts()

    @property
    def memoryfulness(self) -> float:
        """How well the turns that a session has had tell how many it still has.

        1 where all sessions have the same number of turns, 0 where nothing can be told.
        """
        return min(max(-self._turns.correlation, 0.0), 1.0)

    def tool_calls_s(self, tool: str, tool_class: str) -> Sequence[float]:
        """Return what the calls of this tool took, in its class."""
        return self._of_tool.get((tool, tool_class), ())

    def arrival(self, session: Session) -> int:
        """Return its place in the order in which first turns came, from 0 on."""
        found = self._open.get(session.id)
        return self._arrivals if found is None else found.arrival

    def hear(self, session: Session, event: Event) -> None:
        """Take note of *event*, which is about to be applied to *session*."""
        match event:
            case TurnSubmitted():
                self._submitted(session, event.at_s)
            case PrefillStarted():
                if session.turn is not None:
                    self.queues_s.append(event.at_s - session.turn.submitted_s)
            case ToolEnded():
                if event.status != "cancelled":
                    self._called(event.tool, event.tool_class, event.seconds)
            case DecodeDone():
                if session.id in self._open:
                    self._open[session.id].turns += 1
            case SessionClosed():
                closed = self._open.pop(session.id, None)
                if closed is not None:
                    self._turns.add(closed.turns)
            case _:
                pass

    def _submitted(self, session: Session, now_s: float) -> None:
        if session.closed:
            return
        if session.id not in self._open:
            self._open[session.id] = _Open(self._arrivals)
            self._arrivals += 1
        elif self._open[session.id].turns and session.turn is None:
            self.gaps_s.append(now_s - session.waits_since_s)

    def _called(self, tool: str, tool_class: str, seconds: float) -> None:
        self.calls_s.append(seconds)
        name = (tool, tool_class)
        seen = self._of_tool.get(name)
        if seen is None:
            seen = self._of_tool[name] = deque(maxlen=_CALLS_PER_TOOL)
            if len(self._of_tool) > _TOOLS:
                self._of_tool.popitem(last=False)
        self._of_tool.move_to_end(name)
        seen.append(seconds)


class _Open:
    """When an open session came, as a place in the order, and the turns it has had."""

    __slots__ = ("arrival", "turns")

    def __init__(self, arrival: int) -> None:
        self.arrival = arrival
        self.turns = 0


class _TurnCounts:
    """Sums over all turns k of all sessions of n turns: of k, of n - k, and squares.

    >>> counts = _TurnCounts()
    >>> for turns in (4, 4, 4):
    ...     counts.add(turns)
    >>> round(counts.correlation, 6)
    -1.0
    """

    def __init__(self) -> None:
        self._count = 0
        self._had = 0
        self._left = 0
        self._had_squared = 0
        self._left_squared = 0
        self._product = 0

    def add(self, turns: int) -> None:
        """A session has ended after *turns*; k runs from 1 to there."""
        n = turns
        had, had_squared = n * (n + 1) // 2, n * (n + 1) * (2 * n + 1) // 6
        self._count += n
        self._had += had
        self._left += n * (n - 1) // 2
        self._had_squared += had_squared
        self._left_squared += (n - 1) * n * (2 * n - 1) // 6
        self._product += n * had - had_squared

    @property
    def correlation(self) -> float:
        """Pearson's, of the turns had and the turns left; 0 while it is not defined."""
        count = self._count
        had = count * self._had_squared - self._had**2
        left = count * self._left_squared - self._left**2
        if had <= 0 or left <= 0:
            return 0.0
        both = count * self._product - self._had * self._left
        return both / (math.sqrt(had) * math.sqrt(left))
