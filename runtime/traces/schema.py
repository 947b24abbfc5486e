"""The records of ``kvalet.trace/1``, one JSON object a line.

A file is one header, then session records (optional) and steps. A step is one model
call and the tools that it started: replay, statistics and comparisons all need exactly
that join. No prompt, tool argument or tool output is ever in a record.

Null is unknown, zero is zero. Fields that are not listed here are refused: a misspelt
name would otherwise read as unknown. Times are whole milliseconds.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ..tool_class import ToolClass

SCHEMA = "kvalet.trace/1"
"""The one schema that this version reads and writes."""

Count = Annotated[int, Meta(ge=0)]
"""A number of tokens, bytes, steps or files."""

Milliseconds = Annotated[int, Meta(ge=0)]
"""A duration, or a time since an origin that the field names."""

Status = Literal["ok", "error", "timeout", "cancelled", "open"]
"""How a tool call ended; ``open``: its end was not recorded."""

Next = Literal["tool", "user", "subagent", "end"]
"""What the session waits for after a step."""

GapSource = Literal["measured", "upper_bound", "includes_llm", "generated"]
"""How ``gap_ms`` is known; ``upper_bound``: it holds approval and client time too."""

HashScope = Literal["trace", "session", "global"]
"""Within what equal ``hash_ids`` mean equal tokens."""

Flag = Literal[
    "output_tokens_estimated",
    "tokens_estimated",
    "gap_upper_bound",
    "gap_includes_llm",
    "resolution_1s",
    "arrival_quantised",
    "no_tool_names",
    "no_timestamps",
    "no_session",
    "no_token_counts",
    "reordered",
    "truncated",
    "tool_contains_llm",
    "compacted",
]
"""What cannot be concluded from a step; reports name the flags they met."""


class Tool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tool call.

    ``start_ms`` counts from the end of the model call and is negative where the call
    was emitted while the model still wrote. ``dur_ms`` is wall time and holds approval
    time unless ``approval_ms`` is known; ``internal_ms`` is what the tool reported.
    """

    id: str
    name: str | None = None
    class_name: ToolClass | None = field(default=None, name="class")
    start_ms: int | None = None
    dur_ms: Milliseconds | None = None
    internal_ms: Milliseconds | None = None
    approval_ms: Milliseconds | None = None
    status: Status = "ok"
    input_bytes: Count | None = None
    output_tokens: Count | None = None
    output_bytes: Count | None = None
    child: str | None = None
    """The session that this call spawned, where it is in the trace."""


class Step(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="step",
):
    """One model call of a session, and the tools that it started.

    ``prefix_tokens`` is structure: what the input shares with the context that the
    previous step of the session left, that step's output included. ``cached_tokens`` is
    an observation: what the recorded server hit. ``new_tokens`` is input less prefix.
    ``tool_ms`` is the union of the tool intervals after the model call; ``gap_ms``
    (tool, approval, user and overhead) lasts until the next step starts.
    """

    session: str
    step: Count
    deps: tuple[str, ...] = ()
    """Steps of other sessions to wait for, as ``session/step``; the previous step of
    the own session is implied."""
    t_ms: Milliseconds | None = None
    """Start of the step since the start of its session."""
    model: str | None = None
    input_tokens: Count | None = None
    cached_tokens: Count | None = None
    prefix_tokens: Count | None = None
    new_tokens: Count | None = None
    output_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    hash_ids: tuple[int, ...] | None = None
    block_size: Annotated[int, Meta(ge=1)] | None = None
    hash_scope: HashScope | None = None
    llm_ms: Milliseconds | None = None
    ttft_ms: Milliseconds | None = None
    tools: tuple[Tool, ...] = ()
    tool_ms: Milliseconds | None = None
    user_ms: Milliseconds | None = None
    overhead_ms: Milliseconds | None = None
    gap_ms: Milliseconds | None = None
    gap_source: GapSource | None = None
    next: Next
    q: tuple[Flag, ...] = ()


class SessionRecord(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="session",
):
    """What is known of a session besides its steps.

    ``spawned_by`` is the id of the tool call of ``parent`` that started it; a
    ``blocking`` child ends that call with its own end.
    """

    session: str
    parent: str | None = None
    spawned_by: str | None = None
    arrival_ms: Milliseconds = 0
    """Start of the session since the start of the trace."""
    class_name: str | None = field(default=None, name="class")
    blocking: bool = True


class Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a trace comes from, and what was done to it."""

    format: str
    files: Count | None = None
    license: str | None = None
    note: str | None = None


class Header(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="trace",
):
    """The first line of a trace."""

    schema: str
    source: Source
    time_unit: Literal["ms"] = "ms"


Record = Header | SessionRecord | Step
"""Any line of a trace."""
