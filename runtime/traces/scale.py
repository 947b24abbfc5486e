"""Fits a recorded trace into a small model, or into a short time.

Contexts of real agents hold tens of thousands of tokens; a model on a laptop holds a
few hundred. Scaling keeps the structure that a replay needs: what was known stays
known, what was there stays at least one token, contexts that grew still grow, and a
prefix never exceeds the context that it was taken from.
"""

import math
from dataclasses import dataclass

import msgspec

from .errors import TraceError
from .schema import Header, Step, Tool
from .trace import Trace, TraceSession, context_tokens

_FIT_TRIES = 20


def scaled(
    trace: Trace,
    *,
    token_scale: float = 1.0,
    time_scale: float = 1.0,
    arrival_scale: float | None = None,
) -> Trace:
    """Multiply every token count by *token_scale* and every time by *time_scale*.

    Arrivals of sessions follow *time_scale* unless they have a scale of their own. Hash
    ids name real tokens, so they are dropped when tokens are scaled. The header notes
    what was done.
    """
    if arrival_scale is None:
        arrival_scale = time_scale
    _check("token_scale", token_scale, zero=False)
    _check("time_scale", time_scale, zero=True)
    _check("arrival_scale", arrival_scale, zero=True)
    return Trace(
        header=_noted(trace.header, token_scale, time_scale, arrival_scale),
        sessions=tuple(
            _scaled_session(session, token_scale, time_scale, arrival_scale)
            for session in trace.sessions
        ),
    )


def scaled_to_fit(
    trace: Trace, *, context_tokens: int, time_scale: float = 1.0
) -> Trace:
    """Scale tokens down, if needed, until no session exceeds *context_tokens*.

    Raises TraceError where that is impossible: each step keeps at least one token of
    input and one of output.
    """
    longest = trace.longest_context_tokens
    if longest <= context_tokens:
        return scaled(trace, time_scale=time_scale)
    token_scale = context_tokens / longest
    for _ in range(_FIT_TRIES):
        result = scaled(trace, token_scale=token_scale, time_scale=time_scale)
        if result.longest_context_tokens <= context_tokens:
            return result
        # Sizes below one token were rounded up; leave them more room.
        token_scale *= 0.8
    raise TraceError(
        f"a context of {longest} tokens cannot be scaled down to {context_tokens}: "
        "each of its steps keeps at least two tokens"
    )


def _check(name: str, scale: float, *, zero: bool) -> None:
    if not math.isfinite(scale) or scale < 0 or (scale == 0 and not zero):
        raise TraceError(f"{name}: {scale} is no scale; expected a positive number")


def _noted(
    header: Header, token_scale: float, time_scale: float, arrival_scale: float
) -> Header:
    done = [
        f"{name} x{scale:g}"
        for name, scale in (
            ("tokens", token_scale),
            ("times", time_scale),
            ("arrivals", arrival_scale),
        )
        if scale != 1.0
    ]
    if not done:
        return header
    note = "; ".join(filter(None, [header.source.note, "scaled: " + ", ".join(done)]))
    source = msgspec.structs.replace(header.source, note=note)
    return msgspec.structs.replace(header, source=source)


def _scaled_session(
    session: TraceSession, token_scale: float, time_scale: float, arrival_scale: float
) -> TraceSession:
    steps: list[Step] = []
    before: Step | None = None
    for step in session.steps:
        sizes = step
        if token_scale != 1.0:
            after = steps[-1] if steps else None
            sizes = _scaled_sizes(step, before, after, token_scale)
        steps.append(sizes)
        before = step
    return TraceSession(
        id=session.id,
        parent=session.parent,
        spawned_by=session.spawned_by,
        arrival_ms=round(session.arrival_ms * arrival_scale),
        class_name=session.class_name,
        blocking=session.blocking,
        steps=tuple(_scaled_times(step, time_scale) for step in steps),
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    prefix_tokens: int | None
    input_tokens: int | None
    new_tokens: int | None


def _scaled_sizes(
    step: Step, before: Step | None, after: Step | None, scale: float
) -> Step:
    """Scale one step; *before* and *after*: the previous one, unscaled and scaled."""
    sizes = _context_sizes(step, before, after, scale)
    output_tokens = _tokens(step.output_tokens, scale)
    return msgspec.structs.replace(
        step,
        input_tokens=sizes.input_tokens,
        prefix_tokens=sizes.prefix_tokens,
        new_tokens=sizes.new_tokens,
        cached_tokens=_at_most(_tokens(step.cached_tokens, scale), sizes.input_tokens),
        output_tokens=output_tokens,
        reasoning_tokens=_at_most(_tokens(step.reasoning_tokens, scale), output_tokens),
        hash_ids=None,
        block_size=None,
        tools=tuple(
            msgspec.structs.replace(
                tool, output_tokens=_tokens(tool.output_tokens, scale)
            )
            for tool in step.tools
        ),
    )


def _context_sizes(
    step: Step, before: Step | None, after: Step | None, scale: float
) -> _Sizes:
    prefix = step.prefix_tokens
    total = _tokens(step.input_tokens, scale)
    if step.input_tokens is None or total is None or prefix is None:
        return _Sizes(_tokens(prefix, scale), total, _tokens(step.new_tokens, scale))
    if before is not None and after is not None:
        small_prefix = _scaled_prefix(prefix, before, after, scale)
        if step.input_tokens >= (before.input_tokens or 0):
            total = max(total, after.input_tokens or 0)
    else:
        small_prefix = _tokens(prefix, scale) or 0
    if step.input_tokens == prefix:
        total = small_prefix
    total = max(total, small_prefix + (step.input_tokens > prefix))
    new = None if step.new_tokens is None else total - small_prefix
    return _Sizes(small_prefix, total, new)


def _scaled_prefix(prefix: int, before: Step, after: Step, scale: float) -> int:
    """Map a prefix into the scaled context that it is taken from.

    Piecewise linear with the corners nothing, input, whole context: so a prefix that
    was the whole context still is, however its parts were rounded.
    """
    corner, small_corner = before.input_tokens or 0, after.input_tokens or 0
    whole, small_whole = context_tokens(before), context_tokens(after)
    if prefix <= corner:
        small = prefix * small_corner // corner if corner else 0
    elif prefix <= whole:
        part = (prefix - corner) * (small_whole - small_corner) // (whole - corner)
        small = small_corner + part
    else:
        small = small_whole + (_tokens(prefix - whole, scale) or 0)
    return max(small, min(prefix, 1))


def _tokens(count: int | None, scale: float) -> int | None:
    """Scale a count; what was there stays there."""
    if count is None or count == 0:
        return count
    return max(1, round(count * scale))


def _at_most(count: int | None, limit: int | None) -> int | None:
    return count if count is None or limit is None else min(count, limit)


def _scaled_times(step: Step, scale: float) -> Step:
    if scale == 1.0:
        return step
    return msgspec.structs.replace(
        step,
        t_ms=_time(step.t_ms, scale),
        llm_ms=_time(step.llm_ms, scale),
        ttft_ms=_time(step.ttft_ms, scale),
        tool_ms=_time(step.tool_ms, scale),
        user_ms=_time(step.user_ms, scale),
        overhead_ms=_time(step.overhead_ms, scale),
        gap_ms=_time(step.gap_ms, scale),
        tools=tuple(_scaled_tool(tool, scale) for tool in step.tools),
    )


def _scaled_tool(tool: Tool, scale: float) -> Tool:
    return msgspec.structs.replace(
        tool,
        start_ms=_time(tool.start_ms, scale),
        dur_ms=_time(tool.dur_ms, scale),
        internal_ms=_time(tool.internal_ms, scale),
        approval_ms=_time(tool.approval_ms, scale),
    )


def _time(time_ms: int | None, scale: float) -> int | None:
    return None if time_ms is None else round(time_ms * scale)
