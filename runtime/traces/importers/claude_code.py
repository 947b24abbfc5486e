"""Imports the session files that Claude Code leaves in ``~/.claude/projects``.

Reads old files, whose subagents stand inline, and new ones, whose subagents have files
of their own. Durations, sizes and classes are kept; text is not, and ids are hashed.

What the files cannot say is flagged: old versions write a placeholder for the output
tokens, which is then estimated from the characters. The shared prefix is inferred from
sizes: a context that grew is taken to begin with all of the one before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path

from ..errors import TraceUnreadable
from ..lines import Advance, first_lines
from ..schema import SCHEMA, Flag, Header, Source, Step, Tool
from ..trace import Trace, TraceSession
from .claude_family import parents
from .claude_lanes import Call, ClaudeLane, LaneCollector, LaneKey, ModelCall
from .claude_records import decode_record
from .claude_steps import StepGap, StepSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeCodeImporter:
    """Reads Claude Code session files; ``hash_ids=False`` keeps ids as they are."""

    hash_ids: bool = True

    @property
    def format(self) -> str:
        """Name of the format."""
        return "claude-code"

    def detects(self, first_lines: Sequence[bytes]) -> bool:
        """Tell whether any of the lines is a record of Claude Code."""
        return any(_is_claude(line) for line in first_lines)

    def read(self, paths: Sequence[Path], advance: Advance) -> Trace:
        """Read all files as one trace; arrivals count from the first of all calls."""
        collector = LaneCollector()
        # Of two files with the same records, the older one owns them.
        for file, path in enumerate(sorted(paths, key=_first_ms)):
            corrupt_line = collector.read(file, path, advance)
            if corrupt_line is not None:
                raise TraceUnreadable.at(
                    path, "no line of this file can be read", line=corrupt_line
                )
        lanes = sorted(collector.filled_lanes(), key=_lane_start_ms)
        if not lanes:
            raise TraceUnreadable.at(
                paths[0], "the recording holds no call of a model", line=1
            )
        source = Source(format=self.format, files=len(paths), note=_note(collector))
        sessions = _Family(lanes, self.hash_ids).sessions()
        return Trace(header=Header(schema=SCHEMA, source=source), sessions=sessions)


def _is_claude(line: bytes) -> bool:
    record = decode_record(line)
    if record is None or not record.type:
        return False
    if record.type == "summary":
        return record.leaf_uuid is not None
    if record.type == "file-history-snapshot":
        return record.message_id is not None
    return record.session_id is not None


def _first_ms(path: Path) -> float:
    records = map(decode_record, first_lines(path))
    times = [record.at_ms for record in records if record is not None]
    return min((time for time in times if time is not None), default=math.inf)


def _lane_start_ms(lane: ClaudeLane) -> int:
    return min(_start_ms(call) for call in lane.model_calls)


def _start_ms(call: ModelCall) -> int:
    return call.start_ms if call.input_ms is None else call.input_ms


def _note(collector: LaneCollector) -> str | None:
    notes: list[str] = []
    if collector.corrupt_lines:
        notes.append(f"{collector.corrupt_lines} corrupt lines skipped")
    if collector.empty_files:
        notes.append(f"{collector.empty_files} files without records of their own")
    return "; ".join(notes) or None


class _Family:
    """Lanes and their kinship, turned into sessions with public ids."""

    def __init__(self, lanes: Sequence[ClaudeLane], hash_ids: bool) -> None:
        self._lanes = lanes
        self._hash_ids = hash_ids
        self._origin_ms = _lane_start_ms(lanes[0])
        self._names = self._unique_names()
        self._parents: dict[LaneKey, tuple[ClaudeLane, Call | None]] = {}
        self._children: dict[str, str] = {}
        for lane, parent, call in parents(lanes):
            self._parents[lane.key] = (parent, call)
            if call is not None:
                self._children[call.id] = self._names[lane.key]

    def sessions(self) -> tuple[TraceSession, ...]:
        """Return a session for each lane, in the order of their starts."""
        return tuple(self._session(lane) for lane in self._lanes)

    def _unique_names(self) -> dict[LaneKey, str]:
        names: dict[LaneKey, str] = {}
        taken: set[str] = set()
        for lane in self._lanes:
            _, session, agent = lane.key
            base = self._public(session if agent is None else f"{session}/{agent}")
            name, number = base, 1
            while name in taken:
                number += 1
                name = f"{base}~{number}"
            taken.add(name)
            names[lane.key] = name
        return names

    def _public(self, id: str) -> str:
        if not self._hash_ids:
            return id
        return blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def _session(self, lane: ClaudeLane) -> TraceSession:
        parent, call = self._parents.get(lane.key, (None, None))
        return TraceSession(
            id=self._names[lane.key],
            parent=None if parent is None else self._names[parent.key],
            spawned_by=None if call is None else self._public(call.id),
            arrival_ms=_lane_start_ms(lane) - self._origin_ms,
            class_name="interactive" if lane.key[2] is None else "subagent",
            blocking=parent is None or (call is not None and not call.in_background),
            steps=self._steps(lane),
        )

    def _steps(self, lane: ClaudeLane) -> tuple[Step, ...]:
        calls = sorted(lane.model_calls, key=_start_ms)
        is_reordered = calls != lane.model_calls
        steps: list[Step] = []
        for call, following in zip_longest(calls, calls[1:]):
            step = self._step(lane, call, following, steps, is_reordered)
            steps.append(step)
        return tuple(steps)

    def _step(
        self,
        lane: ClaudeLane,
        call: ModelCall,
        following: ModelCall | None,
        before: Sequence[Step],
        is_reordered: bool,
    ) -> Step:
        sizes, gap = StepSizes.of(call, before), StepGap.of(call, following)
        return Step(
            session=self._names[lane.key],
            step=len(before),
            t_ms=_start_ms(call) - _lane_start_ms(lane),
            model=call.model,
            input_tokens=sizes.input_tokens,
            cached_tokens=sizes.cached_tokens,
            prefix_tokens=sizes.prefix_tokens,
            new_tokens=sizes.new_tokens,
            output_tokens=sizes.output_tokens,
            llm_ms=None if call.input_ms is None else call.end_ms - call.input_ms,
            tools=tuple(self._tool(tool, call) for tool in call.calls),
            tool_ms=gap.tool_ms,
            user_ms=gap.user_ms,
            overhead_ms=gap.overhead_ms,
            gap_ms=gap.gap_ms,
            gap_source=None if gap.gap_ms is None else "measured",
            next=gap.next,
            q=_flags(call, sizes, is_reordered),
        )

    def _tool(self, tool: Call, call: ModelCall) -> Tool:
        return Tool(
            id=self._public(tool.id),
            name=tool.name,
            class_name=tool.class_name,
            start_ms=tool.start_ms - call.end_ms,
            dur_ms=None if tool.end_ms is None else tool.end_ms - tool.start_ms,
            internal_ms=tool.internal_ms,
            status=tool.status,
            input_bytes=tool.input_bytes,
            output_bytes=tool.output_bytes,
            child=self._children.get(tool.id),
        )


def _flags(call: ModelCall, sizes: StepSizes, is_reordered: bool) -> tuple[Flag, ...]:
    flags: list[Flag] = []
    if sizes.is_estimate:
        flags.append("output_tokens_estimated")
    if sizes.input_tokens is None:
        flags.append("no_token_counts")
    if is_reordered:
        flags.append("reordered")
    if call.truncated:
        flags.append("truncated")
    if call.compacted or sizes.has_shrunk:
        flags.append("compacted")
    return tuple(flags)
