"""Finds which tool call of which lane spawned each subagent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .claude_lanes import Call, ClaudeLane

Spawn = tuple[ClaudeLane, Call]
"""A lane, and the call of it that spawned a subagent."""


@dataclass(slots=True, eq=False)
class _Calls:
    """The calls that spawned subagents, by what a subagent's lane knows of them."""

    mains: dict[str, ClaudeLane] = field(default_factory=dict[str, ClaudeLane])
    by_agent: dict[tuple[str, str], Spawn] = field(
        default_factory=dict[tuple[str, str], Spawn]
    )
    by_prompt: dict[tuple[str, bytes], list[Spawn]] = field(
        default_factory=dict[tuple[str, bytes], list[Spawn]]
    )

    def add(self, lane: ClaudeLane) -> None:
        _, session, agent = lane.key
        if agent is None:
            self.mains.setdefault(session, lane)
        for call in (call for model in lane.model_calls for call in model.calls):
            if call.agent_id is not None:
                self.by_agent.setdefault((session, call.agent_id), (lane, call))
            if call.prompt_hash is not None:
                key = (session, call.prompt_hash)
                self.by_prompt.setdefault(key, []).append((lane, call))


def parents(
    lanes: Sequence[ClaudeLane],
) -> Iterator[tuple[ClaudeLane, ClaudeLane, Call | None]]:
    """Yield each subagent lane with its parent, and with the call that spawned it.

    The call is known by the agent id in its result, else by the prompt that the
    subagent began with; where neither is there, the parent is the main lane.
    """
    calls = _Calls()
    for lane in lanes:
        calls.add(lane)
    subagents = [lane for lane in lanes if lane.key[2] is not None]
    found = {lane.key: _by_agent(lane, calls) for lane in subagents}
    claimed = {spawn[1].id for spawn in found.values() if spawn is not None}
    for lane in subagents:
        spawn = found[lane.key] or _by_prompt(lane, calls, claimed)
        main = calls.mains.get(lane.key[1])
        if spawn is not None:
            claimed.add(spawn[1].id)
            yield lane, spawn[0], spawn[1]
        elif main is not None:
            yield lane, main, None


def _by_agent(lane: ClaudeLane, calls: _Calls) -> Spawn | None:
    _, session, agent = lane.key
    spawn = calls.by_agent.get((session, agent or ""))
    return None if spawn is None or spawn[0] is lane else spawn


def _by_prompt(lane: ClaudeLane, calls: _Calls, claimed: set[str]) -> Spawn | None:
    candidates = calls.by_prompt.get((lane.key[1], lane.prompt_hash or b""), [])
    for spawn in candidates:
        if spawn[0] is not lane and spawn[1].id not in claimed:
            return spawn
    return None
