"""Imports cc-traces: sessions of Claude Code as a proxy saw them (Weka, SemiAnalysis).

They know what no log of an agent knows, which blocks of an input are the same as
before. They do not know tools: the wait before the next call is all that there is of
them. It holds approvals and the client's own time, is recorded in whole seconds, and
becomes one call of a tool without a name. No time of day is recorded, so all sessions
arrive at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path

from ..errors import TraceUnreadable
from ..lines import Advance
from ..schema import SCHEMA, Flag, Header, Source, Status, Step, Tool
from ..trace import Trace, TraceSession
from .weka_lanes import Spawn, WekaLane, lanes_of
from .weka_records import Request, detects_recording, read_recordings
from .weka_steps import BlockNumbers, CallGap, SharedPrefix, milliseconds

_STATUS: dict[str | None, Status] = {
    "cancelled": "cancelled",
    "error": "error",
    "failed": "error",
    "timeout": "timeout",
}
"""How a subagent ended; any other word is taken for a good end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WekaImporter:
    """Reads cc-traces; ``hash_ids=False`` keeps session ids as they are."""

    hash_ids: bool = True

    @property
    def format(self) -> str:
        """Name of the format."""
        return "weka"

    def detects(self, first_lines: Sequence[bytes]) -> bool:
        """Tell whether a file that begins so holds recordings of this format."""
        return detects_recording(first_lines)

    def read(self, paths: Sequence[Path], advance: Advance) -> Trace:
        """Read all files as one trace; equal block ids keep to one recording."""
        sessions: list[TraceSession] = []
        names = _Names(self.hash_ids)
        first_block = 1
        for path in paths:
            for recording in read_recordings(path, advance):
                lanes = lanes_of(recording, recording.id or path.stem)
                blocks = BlockNumbers(first_block)
                family = _Family(lanes, names, blocks, recording.block_size)
                sessions.extend(family.sessions())
                first_block = blocks.following
        if not sessions:
            raise TraceUnreadable.at(paths[0], "the recording holds no call of a model")
        source = Source(
            format=self.format,
            files=len(paths),
            note="the times at which sessions began are not recorded",
        )
        header = Header(schema=SCHEMA, source=source)
        return Trace(header=header, sessions=tuple(sessions))


class _Names:
    """Public ids of lanes, each given once."""

    def __init__(self, hash_ids: bool) -> None:
        self._hash_ids = hash_ids
        self._taken: set[str] = set()

    def give(self, path: Sequence[str]) -> str:
        id = "/".join(path)
        if self._hash_ids:
            encoded = id.encode("utf-8", "surrogatepass")
            id = blake2b(encoded, digest_size=8).hexdigest()
        name, number = id, 1
        while name in self._taken:
            number += 1
            name = f"{id}~{number}"
        self._taken.add(name)
        return name


class _Family:
    """The lanes of one recording, turned into sessions."""

    def __init__(
        self,
        lanes: Sequence[WekaLane],
        names: _Names,
        blocks: BlockNumbers,
        block_size: int,
    ) -> None:
        self._lanes = lanes
        self._names = {lane: names.give(lane.path) for lane in lanes}
        self._blocks = blocks
        self._block_size = block_size

    def sessions(self) -> Iterator[TraceSession]:
        """Yield a session for each lane, every one after its parent."""
        for lane in self._lanes:
            origin = lane.origin
            yield TraceSession(
                id=self._names[lane],
                parent=None if origin is None else self._names[origin.parent],
                spawned_by=None if origin is None else _spawn_id(origin),
                arrival_ms=milliseconds(lane.start_s - self._lanes[0].start_s),
                class_name="interactive" if len(lane.path) == 1 else "subagent",
                blocking=origin is None or origin.is_blocking,
                steps=tuple(self._steps(lane)),
            )

    def _steps(self, lane: WekaLane) -> Iterator[Step]:
        previous: Request | None = None
        numbers: tuple[int, ...] = ()
        pairs = zip_longest(lane.calls, lane.calls[1:])
        for index, (call, following) in enumerate(pairs):
            prefix = SharedPrefix.of(call, previous, self._block_size)
            ids = call.block_ids or []
            numbers = self._blocks.of(ids, numbers[: prefix.blocks])
            yield self._step(lane, index, prefix, CallGap.of(call, following), numbers)
            previous = call

    def _step(
        self,
        lane: WekaLane,
        index: int,
        prefix: SharedPrefix,
        gap: CallGap,
        numbers: tuple[int, ...],
    ) -> Step:
        call, total = lane.calls[index], lane.calls[index].input_tokens
        spawns = [spawn for spawn in lane.spawns if spawn.step == index]
        is_blocked = any(spawn.is_blocking for spawn in spawns)
        tools = [self._subagent(spawn, call) for spawn in spawns]
        if not is_blocked and gap.next == "tool" and gap.source == "upper_bound":
            tools.append(Tool(id=f"wait-{index}", start_ms=0, dur_ms=gap.gap_ms))
        tool_ms = _union_ms(tools, gap)
        has_blocks = call.block_ids is not None
        return Step(
            session=self._names[lane],
            step=index,
            t_ms=milliseconds(call.at_s - lane.calls[0].at_s),
            model=call.model,
            input_tokens=total,
            prefix_tokens=prefix.tokens,
            new_tokens=_new_tokens(total, prefix.tokens),
            output_tokens=call.output_tokens,
            hash_ids=numbers if has_blocks else None,
            block_size=self._block_size if has_blocks else None,
            hash_scope="trace" if has_blocks else None,
            llm_ms=None if call.llm_s is None else milliseconds(call.llm_s),
            ttft_ms=None if call.ttft_s is None else milliseconds(call.ttft_s),
            tools=tuple(tools),
            tool_ms=tool_ms,
            user_ms=_user_ms(gap, tool_ms),
            gap_ms=gap.gap_ms,
            gap_source=gap.source,
            next="subagent" if is_blocked and gap.next == "tool" else gap.next,
            q=tuple(_flags(lane, call, prefix, gap)),
        )

    def _subagent(self, spawn: Spawn, call: Request) -> Tool:
        start_ms = None
        if call.llm_s is not None:
            start_ms = milliseconds(spawn.start_s - call.at_s - call.llm_s)
        dur_ms = None
        if spawn.end_s is not None and spawn.is_blocking:
            dur_ms = milliseconds(spawn.end_s - spawn.start_s)
        return Tool(
            id=_spawn_id(spawn),
            class_name="subagent",
            start_ms=start_ms,
            dur_ms=dur_ms,
            status=_STATUS.get(spawn.status, "ok"),
            child=self._names[spawn.child],
        )


def _spawn_id(spawn: Spawn) -> str:
    return f"subagent-{spawn.parent.spawns.index(spawn)}"


def _union_ms(tools: Sequence[Tool], gap: CallGap) -> int | None:
    """Return how much of the wait tools are known to take; None without any."""
    total_ms = covered_ms = 0
    known = [tool for tool in tools if tool.dur_ms is not None]
    for tool in sorted(known, key=lambda tool: tool.start_ms or 0):
        start_ms = tool.start_ms or 0
        end_ms = start_ms + (tool.dur_ms or 0)
        total_ms += max(0, end_ms - max(start_ms, covered_ms))
        covered_ms = max(covered_ms, end_ms)
    if not known:
        return None
    return total_ms if gap.gap_ms is None else min(total_ms, gap.gap_ms)


def _user_ms(gap: CallGap, tool_ms: int | None) -> int | None:
    if gap.next != "user" or gap.gap_ms is None:
        return None
    return gap.gap_ms - (tool_ms or 0)


def _new_tokens(total: int | None, prefix: int | None) -> int | None:
    return None if total is None or prefix is None else total - prefix


def _flags(
    lane: WekaLane, call: Request, prefix: SharedPrefix, gap: CallGap
) -> Iterator[Flag]:
    if call.input_tokens is None or call.output_tokens is None:
        yield "no_token_counts"
    if gap.source == "upper_bound":
        yield "gap_upper_bound"
    if gap.source == "includes_llm":
        yield "gap_includes_llm"
    if gap.gap_ms is not None and gap.gap_ms % 1000 == 0:
        yield "resolution_1s"
    if gap.next == "tool" or call.stop == "tool_use":
        yield "no_tool_names"
    if lane.is_reordered:
        yield "reordered"
    if prefix.is_cut:
        yield "compacted"
