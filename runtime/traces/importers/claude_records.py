"""As much of Claude Code's records as the importer needs; all else is skipped unread.

One API message is written as several records, one for each block of its content, with
the same ``message.id``. A tool call is a ``tool_use`` block; its end is the record of
the user that holds the ``tool_result`` block with its id.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from msgspec import Raw, Struct, field

from ..schema import Count, Status

_TIMED_OUT = re.compile(
    rb"[Tt]imed out after (?:\d+ ?(?:m|s)|[\d.]+ ?(?:seconds|minutes))"
)
_CANCELLED = re.compile(
    rb"[Rr]equest interrupted by user|[Uu]ser rejected|user doesn't want to"
    rb"|[Ii]nterrupted by user"
)


USED_TYPES = ("assistant", "system", "user")
"""The record types that the importer takes; new versions add others at will."""

_NOTICE_BYTES = 160
"""A time limit is announced at the start of a result; further on, a program speaks."""


class Usage(Struct, frozen=True):
    """Tokens of one API message; in old versions the output is a placeholder."""

    input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    output_tokens: Count | None = None

    @property
    def all_input_tokens(self) -> int:
        """Input, written to the cache or read from it or neither."""
        return (
            (self.input_tokens or 0)
            + (self.cache_creation_input_tokens or 0)
            + (self.cache_read_input_tokens or 0)
        )


class Block(Struct, frozen=True):
    """One block of content: text, thinking, a tool call or the result of one."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = field(default_factory=Raw)
    tool_use_id: str | None = None
    content: Raw = field(default_factory=Raw)
    is_error: bool | None = None


class Message(Struct, frozen=True):
    """The API message, or the part of it, that a record holds."""

    id: str | None = None
    model: str | None = None
    content: str | list[Block | str] | None = None
    usage: Usage | None = None

    @property
    def blocks(self) -> Iterator[Block]:
        """The content, if it comes in blocks."""
        if isinstance(self.content, list):
            yield from (block for block in self.content if isinstance(block, Block))

    @property
    def text(self) -> str:
        """The text of the content, for comparison only."""
        if isinstance(self.content, str):
            return self.content
        return "".join(block.text or "" for block in self.blocks)


class ClaudeRecord(Struct, frozen=True, rename="camel"):
    """One line of a session file."""

    type: str = ""
    subtype: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    is_sidechain: bool | None = None
    is_meta: bool | None = None
    is_compact_summary: bool | None = None
    timestamp: datetime | None = None
    leaf_uuid: str | None = None
    message_id: str | None = None
    message: Message | None = None
    tool_use_result: Raw = field(default_factory=Raw)

    @property
    def at_ms(self) -> int | None:
        """Time of the record in milliseconds since 1970, UTC where no zone is given."""
        if self.timestamp is None:
            return None
        time = self.timestamp
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)


class ToolReport(Struct, frozen=True, rename="camel"):
    """What a tool reports of itself beside its result."""

    duration_ms: float | None = None
    duration_seconds: float | None = None
    total_duration_ms: float | None = None
    interrupted: bool | None = None
    agent_id: str | None = None
    status: str | None = None

    @property
    def internal_ms(self) -> int | None:
        """Duration without client time, where a duration was reported."""
        if self.duration_ms is not None:
            return max(0, round(self.duration_ms))
        if self.duration_seconds is not None:
            return max(0, round(self.duration_seconds * 1000))
        if self.total_duration_ms is not None:
            return max(0, round(self.total_duration_ms))
        return None


class _ToolInput(Struct, frozen=True):
    command: str | None = None
    prompt: str | None = None


class _Type(Struct, frozen=True):
    type: str = ""


_TYPES = msgspec.json.Decoder(_Type)
_RECORDS = msgspec.json.Decoder(ClaudeRecord)
_REPORTS = msgspec.json.Decoder(ToolReport)
_INPUTS = msgspec.json.Decoder(_ToolInput)
_CONTENTS: msgspec.json.Decoder[str | list[Block | str] | None] = msgspec.json.Decoder(
    str | list[Block | str] | None
)


def decode_record(line: bytes) -> ClaudeRecord | None:
    """Return the record on this line, or None where it is corrupt."""
    try:
        return _RECORDS.decode(line)
    except msgspec.ValidationError:
        return _other_record(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _other_record(line: bytes) -> ClaudeRecord | None:
    """Accept any shape of a record whose type carries nothing that we need."""
    try:
        found = _TYPES.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if found.type in ("", *USED_TYPES):
        return None
    return ClaudeRecord(type=found.type)


def decode_report(raw: Raw) -> ToolReport:
    """Return what the tool reports; an empty report where it reports a text."""
    try:
        return _REPORTS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ToolReport()


def command_and_prompt(raw: Raw) -> tuple[str | None, str | None]:
    """Return the command of a shell call and the prompt of a subagent call."""
    try:
        given = _INPUTS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, None
    return given.command, given.prompt


def text_bytes(raw: Raw) -> int:
    """Return the size of the text in a tool result, as UTF-8."""
    try:
        content = _CONTENTS.decode(raw) if bytes(raw) else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return len(bytes(raw))
    return len(Message(content=content).text.encode("utf-8", "surrogatepass"))


def result_status(block: Block, report: ToolReport, *, is_shell: bool) -> Status:
    """Tell how the call ended whose result this is."""
    text = bytes(block.content)
    if is_shell and _TIMED_OUT.search(text, 0, _NOTICE_BYTES):
        return "timeout"
    if report.interrupted or (block.is_error and _CANCELLED.search(text)):
        return "cancelled"
    return "error" if block.is_error else "ok"
