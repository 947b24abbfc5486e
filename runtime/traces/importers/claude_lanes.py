"""Sorts the records of Claude Code into lanes: who called the model when, then what.

A lane is one conversation of a file: the main one, or a subagent's. Records that an
earlier file held already (a resumed or forked session repeats them) are dropped here,
by record uuid, by message id and by tool call id.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from ...tool_class import ToolClass, tool_class
from ..lines import Advance, read_lines
from ..schema import Status
from .claude_records import (
    USED_TYPES,
    Block,
    ClaudeRecord,
    ToolReport,
    Usage,
    command_and_prompt,
    decode_record,
    decode_report,
    result_status,
    text_bytes,
)

LaneKey = tuple[int, str, str | None]
"""File, session and agent; agent is None for the main lane."""


@dataclass(slots=True, eq=False)
class Call:
    """A tool call, from its block in a message to its result."""

    id: str
    name: str | None
    class_name: ToolClass
    start_ms: int
    input_bytes: int
    prompt_hash: bytes | None
    end_ms: int | None = None
    status: Status = "open"
    internal_ms: int | None = None
    output_bytes: int | None = None
    agent_id: str | None = None
    in_background: bool = False


@dataclass(slots=True, eq=False)
class ModelCall:
    """One API message, joined from its records."""

    model: str | None
    input_ms: int | None
    """When the last input before the message was there."""
    after_user: bool
    start_ms: int
    end_ms: int
    usage: Usage | None = None
    characters: int = 0
    calls: list[Call] = field(default_factory=list[Call])
    compacted: bool = False
    truncated: bool = False


@dataclass(slots=True, eq=False)
class ClaudeLane:
    """One conversation, while its file is read."""

    key: LaneKey
    prompt_hash: bytes | None = None
    model_calls: list[ModelCall] = field(default_factory=list[ModelCall])
    input_ms: int | None = None
    after_user: bool = False
    compacted: bool = False

    def begin(self, record: ClaudeRecord, at_ms: int, truncated: bool) -> ModelCall:
        """Start the model call whose first record this is."""
        input_ms = self.input_ms
        if input_ms is not None:
            # No call starts before the one before it has ended, or after its output.
            ended_ms = self.model_calls[-1].end_ms if self.model_calls else input_ms
            input_ms = min(max(input_ms, ended_ms), at_ms)
        call = ModelCall(
            model=record.message.model if record.message else None,
            input_ms=input_ms,
            after_user=self.after_user,
            start_ms=at_ms,
            end_ms=at_ms,
            compacted=self.compacted,
            truncated=truncated,
        )
        self.compacted = False
        self.model_calls.append(call)
        return call


class LaneCollector:
    """Takes files one after another and keeps what their lanes need."""

    def __init__(self) -> None:
        self.lanes: dict[LaneKey, ClaudeLane] = {}
        self.corrupt_lines = 0
        self.empty_files = 0
        self._calls: dict[str, Call] = {}
        self._uuids: set[str] = set()
        self._messages: dict[str, tuple[ModelCall, LaneKey]] = {}
        self._roots: dict[str, str] = {}

    def read(self, file: int, path: Path, advance: Advance) -> int | None:
        """Read one file; return its first corrupt line if no line of it is sound."""
        first_corrupt, sound_lines, lane_count = None, 0, len(self.lanes)
        last: ModelCall | None = None
        truncated = False
        for number, line in read_lines(path, advance):
            record = decode_record(line)
            if record is None:
                self.corrupt_lines += 1
                first_corrupt = first_corrupt or number
                truncated = last is None
                if last is not None:
                    last.truncated = True
                continue
            sound_lines += 1
            call = self._take(file, record, truncated)
            if call is not None:
                last, truncated = call, False
        if len(self.lanes) == lane_count:
            self.empty_files += 1
        return first_corrupt if sound_lines == 0 else None

    def filled_lanes(self) -> list[ClaudeLane]:
        """Return the lanes that called a model."""
        return [lane for lane in self.lanes.values() if lane.model_calls]

    def _take(
        self, file: int, record: ClaudeRecord, truncated: bool
    ) -> ModelCall | None:
        """Put a record into its lane; return the model call that it belongs to."""
        agent = self._agent(record)
        if self._is_repeated(record):
            return None
        at_ms = record.at_ms
        if at_ms is None or record.type not in USED_TYPES:
            return None
        key = (file, record.session_id or "", agent)
        if record.type == "assistant":
            return self._take_output(key, record, at_ms, truncated)
        lane = self.lanes.setdefault(key, ClaudeLane(key))
        if record.is_compact_summary or record.subtype == "compact_boundary":
            lane.compacted = True
        if record.type == "user":
            self._take_input(lane, record, at_ms)
        return None

    def _agent(self, record: ClaudeRecord) -> str | None:
        """Name the subagent of a record; old versions only link a chain of records."""
        if not record.is_sidechain and record.agent_id is None:
            return None
        root = self._roots.get(record.parent_uuid or "", record.uuid or "")
        if record.uuid is not None:
            self._roots[record.uuid] = root
        return record.agent_id or root

    def _is_repeated(self, record: ClaudeRecord) -> bool:
        if record.uuid is None:
            return False
        repeated = record.uuid in self._uuids
        self._uuids.add(record.uuid)
        return repeated

    def _take_output(
        self, key: LaneKey, record: ClaudeRecord, at_ms: int, truncated: bool
    ) -> ModelCall | None:
        message = record.message
        if message is None or message.model == "<synthetic>":
            return None
        id = message.id or record.uuid or f"{key}/{at_ms}"
        call, owner = self._messages.get(id, (None, key))
        if owner != key:
            return None
        if call is None:
            lane = self.lanes.setdefault(key, ClaudeLane(key))
            call = lane.begin(record, at_ms, truncated)
            self._messages[id] = (call, key)
        call.end_ms = max(call.end_ms, at_ms)
        call.usage = _larger(call.usage, message.usage)
        if isinstance(message.content, str):
            call.characters += len(message.content)
        for block in message.blocks:
            self._take_block(call, block, at_ms)
        return call

    def _take_block(self, call: ModelCall, block: Block, at_ms: int) -> None:
        call.characters += len(block.text or "") + len(block.thinking or "")
        if block.type != "tool_use" or block.id is None or block.id in self._calls:
            return
        input_bytes = len(bytes(block.input))
        call.characters += input_bytes
        command, prompt = command_and_prompt(block.input)
        class_name = tool_class(block.name, command)
        tool = Call(
            id=block.id,
            name=block.name,
            class_name=class_name,
            start_ms=at_ms,
            input_bytes=input_bytes,
            prompt_hash=_hash(prompt) if class_name == "subagent" else None,
        )
        self._calls[block.id] = tool
        call.calls.append(tool)

    def _take_input(self, lane: ClaudeLane, record: ClaudeRecord, at_ms: int) -> None:
        message = record.message
        if message is None:
            return
        results = [block for block in message.blocks if block.type == "tool_result"]
        report = decode_report(record.tool_use_result) if results else ToolReport()
        for block in results:
            call = self._calls.get(block.tool_use_id or "")
            if call is not None and call.end_ms is None:
                _finish(call, block, report, at_ms)
        if results:
            lane.after_user = False
        elif not record.is_meta:
            lane.after_user = True
            if lane.input_ms is None:
                lane.prompt_hash = _hash(message.text)
        lane.input_ms = max(at_ms, lane.input_ms or at_ms)


def _finish(call: Call, block: Block, report: ToolReport, at_ms: int) -> None:
    call.end_ms = max(at_ms, call.start_ms)
    is_shell = call.class_name in ("shell", "test", "install", "git", "explore")
    call.status = result_status(block, report, is_shell=is_shell)
    call.internal_ms = report.internal_ms
    call.output_bytes = text_bytes(block.content)
    call.agent_id = report.agent_id
    call.in_background = report.status == "async_launched"


def _larger(one: Usage | None, other: Usage | None) -> Usage | None:
    """Choose between the usages of one message: the last word has the most output."""
    if one is None or other is None:
        return one or other
    return other if (other.output_tokens or 0) >= (one.output_tokens or 0) else one


def _hash(text: str | None) -> bytes | None:
    """Keep enough of a prompt to find it again, and nothing to read."""
    if text is None:
        return None
    return blake2b(
        text.strip().encode("utf-8", "surrogatepass"), digest_size=8
    ).digest()
