"""The lanes of a cc-trace: the agent's own, and one for each subagent within it.

A subagent's calls count from its own start in some releases and from the start of the
recording in others; a lane knows where its clock stands on that of the recording.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from .weka_records import Recording, Request

_RESOLUTION_S = 1.0
"""Calls are recorded to the second, the ends of subagents to the millisecond."""

_start_s = attrgetter("at_s")


@dataclass(slots=True, eq=False, kw_only=True)
class WekaLane:
    """The calls of one agent, in the order of their starts; at least one."""

    path: tuple[str, ...]
    """Recorded ids, from the recording's down to the agent's own."""
    calls: list[Request]
    is_reordered: bool
    zero_s: float = 0.0
    """Where the calls' times count from, on the clock of the recording."""
    origin: "Spawn | None" = None
    spawns: "list[Spawn]" = field(default_factory=list["Spawn"])

    @property
    def start_s(self) -> float:
        """Start of the first call, on the clock of the recording."""
        return self.zero_s + self.calls[0].at_s


@dataclass(slots=True, eq=False, kw_only=True)
class Spawn:
    """A subagent, as the lane that started it sees it; times on that lane's clock."""

    parent: WekaLane
    child: WekaLane
    step: int
    """The call that the subagent was started by."""
    start_s: float
    end_s: float | None
    status: str | None

    @property
    def is_blocking(self) -> bool:
        """Whether the parent made no call before the subagent had ended."""
        if self.end_s is None or self.step + 1 == len(self.parent.calls):
            return True
        following = self.parent.calls[self.step + 1]
        return following.at_s + _RESOLUTION_S >= self.end_s


def lanes_of(recording: Recording, name: str) -> list[WekaLane]:
    """Return all lanes of a recording, every one after its parent."""
    lanes: list[WekaLane] = []
    pending: list[tuple[WekaLane | None, tuple[str, ...], list[Request]]]
    pending = [(_lane((name,), recording.requests), (name,), recording.requests)]
    for lane, path, requests in pending:  # grows while it is walked
        if lane is not None:
            lanes.append(lane)
        subagents = [request for request in requests if request.is_subagent]
        for number, record in enumerate(subagents):
            inner_path = (*path, record.agent_id or str(number))
            inner = record.requests or []
            child = _lane(inner_path, inner)
            if lane is not None and child is not None:
                _relate(lane, child, record)
            pending.append((child, inner_path, inner))
    return lanes


def _lane(path: tuple[str, ...], requests: Sequence[Request]) -> WekaLane | None:
    recorded = [request for request in requests if not request.is_subagent]
    if not recorded:
        return None
    calls = sorted(recorded, key=_start_s)
    return WekaLane(path=path, calls=calls, is_reordered=calls != recorded)


def _relate(parent: WekaLane, child: WekaLane, record: Request) -> None:
    duration_s = None if record.duration_ms is None else record.duration_ms / 1000
    first_s = child.calls[0].at_s
    # Zero where its calls count from its own start.
    start_s = first_s or record.at_s - (duration_s or 0)
    child.zero_s = parent.zero_s + start_s - first_s
    child.origin = Spawn(
        parent=parent,
        child=child,
        step=max(0, bisect_right(parent.calls, start_s, key=_start_s) - 1),
        start_s=start_s,
        end_s=None if duration_s is None else start_s + duration_s,
        status=record.status,
    )
    parent.spawns.append(child.origin)
