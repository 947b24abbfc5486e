"""A carrier whose work takes time, and agents who come back when their tools end.

Everything happens in virtual time and in one order, so a run repeats exactly.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvalet.scheduler import (
    CopyStarted,
    DecodeStarted,
    PrefillAdvanced,
    PrefillDone,
    PrefillStarted,
    RestoreStarted,
    SessionId,
    TurnSubmitted,
)

from .carrier import Carrier, Work


@dataclass
class Machine(Carrier):
    """Works at constant rates; each step ends a unit of work, or asks for a plan."""

    prefill_token_s: float = 0.001
    decode_token_s: float = 0.01
    move_token_s: float = 0.0005
    on_turn_end: Callable[[str], None] | None = None
    _ends: dict[int, tuple[Work, float]] = field(
        init=False, default_factory=dict[int, tuple[Work, float]]
    )

    @property
    def next_s(self) -> float:
        """When something is due next; infinity is never."""
        wake_s = self.plans[-1].wake_at_s if self.plans else None
        ends_s = [ends_s for _, ends_s in self._ends.values()]
        return min([*ends_s, math.inf if wake_s is None else wake_s], default=math.inf)

    def step(self) -> None:
        """Let time pass until the next thing is due, and do it."""
        self.now_s = max(self.now_s, self.next_s)
        due = [slot for slot, (_, ends_s) in self._ends.items() if ends_s <= self.now_s]
        if not due:
            self.wait(0)
            return
        work = self.busy[min(due)]
        turn = self.scheduler.session(work.session).turn
        self.finish(min(due), 0 if turn is None else turn.max_output_tokens)
        if isinstance(work, DecodeStarted) and self.on_turn_end is not None:
            self.on_turn_end(work.session)

    def advance(self, until_s: float) -> None:
        """Let all happen that is due by then."""
        while self.next_s <= until_s:
            self.step()
        self.now_s = max(self.now_s, until_s)

    def move_s(self, tokens: int) -> float:
        """Return what it takes to move so many tokens."""
        return tokens * self.move_token_s

    def _plan(self) -> None:
        super()._plan()
        before = self._ends
        self._ends = {}
        for slot, work in self.busy.items():
            known = before.get(slot)
            if known is not None and known[0] is work:
                self._ends[slot] = known
            else:
                self._ends[slot] = (work, self.now_s + self._lasts_s(work))

    def _lasts_s(self, work: Work) -> float:
        if isinstance(work, CopyStarted):
            return self.move_s(work.kv_tokens - work.first_token)
        if isinstance(work, RestoreStarted):
            return self.move_s(work.kv_tokens)
        session = self.scheduler.session(work.session)
        turn = session.turn
        assert turn is not None
        if isinstance(work, PrefillStarted):
            until = work.until_tokens or turn.prompt_tokens
            return (until - session.reusable_tokens) * self.prefill_token_s
        return turn.max_output_tokens * self.decode_token_s


class Step(NamedTuple):
    """A turn that appends to the conversation, and the tool call that follows."""

    new_tokens: int
    output_tokens: int
    tool_class: str
    tool_s: float


class Agents:
    """Agents on one machine, each with its steps; the next follows the last's tool."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._steps: dict[str, list[Step]] = {}
        machine.on_turn_end = self._call_tool

    def start(self, name: str, steps: Sequence[Step], at_s: float) -> None:
        """Let an agent begin at *at_s*."""
        self._steps[name] = list(steps)
        self._later(at_s, lambda: self._begin(name))

    def run(self) -> None:
        """Go on until all agents have ended; raise AssertionError if one is stuck."""
        machine = self._machine
        while self._steps:
            due_s = self._due[0][0] if self._due else math.inf
            assert min(due_s, machine.next_s) < math.inf, "nobody will look again"
            if due_s <= machine.next_s:
                machine.now_s, _, act = heapq.heappop(self._due)
                act()
            else:
                machine.step()
        while machine.busy:
            machine.step()

    def _later(self, at_s: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_s, self._number, act))

    def _begin(self, name: str) -> None:
        self._machine.open(name)
        self._submit(name, 0)

    def _submit(self, name: str, known_tokens: int) -> None:
        step = self._steps[name][0]
        prompt = known_tokens + step.new_tokens
        self._machine.submit(name, prompt, known_tokens, step.output_tokens)

    def _call_tool(self, name: str) -> None:
        machine, step = self._machine, self._steps[name].pop(0)
        if not self._steps[name]:
            del self._steps[name]
            machine.close(name)
            return
        known_tokens = machine.scheduler.session(SessionId(name)).held_tokens
        machine.tool(name, tool_class=step.tool_class)
        self._later(
            machine.now_s + step.tool_s, lambda: self._back(name, known_tokens, step)
        )

    def _back(self, name: str, known_tokens: int, step: Step) -> None:
        self._machine.end_tool(name, tool_class=step.tool_class, seconds=step.tool_s)
        self._submit(name, known_tokens)


def recomputed_tokens(carrier: Carrier) -> int:
    """Return how much was computed that had been computed before."""
    tokens = 0
    for _, event in carrier.heard:
        if isinstance(event, TurnSubmitted):
            tokens -= event.prompt_tokens - event.prefix_tokens
        elif isinstance(event, PrefillDone | PrefillAdvanced):
            tokens += event.computed_tokens
    return tokens


def moved_tokens(carrier: Carrier) -> int:
    """Return how much was copied out and brought back."""
    return sum(
        sum(copy.kv_tokens - copy.first_token for copy in plan.copy)
        + sum(restore.kv_tokens for restore in plan.restore)
        for plan in carrier.plans
    )
