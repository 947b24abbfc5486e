"""Infers the sizes of a model call, and what the session waited for after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ..schema import Next, Step
from .claude_lanes import ModelCall

CHARACTERS_PER_TOKEN = 3.6
"""Measured over messages whose usage is final; for estimates only."""

PLACEHOLDER_TOKENS = 3
"""Versions up to 2.1.16 record the usage of the start of a message: a few tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """Token counts of one model call, and what is wrong with them."""

    input_tokens: int | None
    cached_tokens: int | None
    prefix_tokens: int | None
    output_tokens: int | None
    is_estimate: bool
    has_shrunk: bool

    @property
    def new_tokens(self) -> int | None:
        """Input less prefix, where both are known."""
        if self.input_tokens is None or self.prefix_tokens is None:
            return None
        return self.input_tokens - self.prefix_tokens

    @classmethod
    def of(cls, call: ModelCall, before: Sequence[Step]) -> Self:
        """Size a call, given the steps of its lane before it."""
        usage = call.usage
        total = None if usage is None else usage.all_input_tokens
        output, is_estimate = _output_tokens(call)
        previous = before[-1].input_tokens if before else None
        return cls(
            input_tokens=total,
            cached_tokens=None if usage is None else usage.cache_read_input_tokens,
            prefix_tokens=_prefix_tokens(total, before),
            output_tokens=output,
            is_estimate=is_estimate,
            has_shrunk=total is not None and previous is not None and total < previous,
        )


def _prefix_tokens(total: int | None, before: Sequence[Step]) -> int | None:
    """Infer what an input of this size shares with the context before it."""
    if not before:
        return 0
    previous, first = before[-1], before[0]
    if total is None or previous.input_tokens is None:
        return None
    if total < previous.input_tokens:
        # After a compaction, what the lane began with is all that can still agree.
        return min(first.input_tokens or 0, total)
    return min(previous.input_tokens + (previous.output_tokens or 0), total)


def _output_tokens(call: ModelCall) -> tuple[int, bool]:
    """Return the output, and whether it had to be estimated from its characters."""
    recorded = call.usage.output_tokens if call.usage is not None else None
    least = max(PLACEHOLDER_TOKENS, call.characters / 20)
    if recorded is not None and recorded > least:
        return recorded, False
    return max(1, round(call.characters / CHARACTERS_PER_TOKEN)), True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGap:
    """The time from the end of a model call to the input of the next one."""

    next: Next
    tool_ms: int
    gap_ms: int | None = None
    user_ms: int | None = None
    overhead_ms: int | None = None

    @classmethod
    def of(cls, call: ModelCall, following: ModelCall | None) -> Self:
        """Measure what lies between a call and the following one of its lane."""
        tool_ms = _union_ms(call)
        if following is None:
            return cls(next="end", tool_ms=tool_ms)
        if following.input_ms is None:
            return cls(next="user" if following.after_user else "tool", tool_ms=tool_ms)
        gap_ms = max(0, following.input_ms - call.end_ms)
        rest_ms = max(0, gap_ms - tool_ms)
        if following.after_user:
            return cls(next="user", tool_ms=tool_ms, gap_ms=gap_ms, user_ms=rest_ms)
        spawns = any(tool.class_name == "subagent" for tool in call.calls)
        return cls(
            next="subagent" if spawns else "tool",
            tool_ms=tool_ms,
            gap_ms=gap_ms,
            user_ms=0,
            overhead_ms=rest_ms,
        )


def _union_ms(call: ModelCall) -> int:
    """Return how long any tool ran after the model call had ended."""
    total_ms, covered_ms = 0, call.end_ms
    for tool in sorted(call.calls, key=lambda tool: tool.start_ms):
        if tool.end_ms is not None and tool.end_ms > covered_ms:
            total_ms += tool.end_ms - max(tool.start_ms, covered_ms)
            covered_ms = tool.end_ms
    return total_ms
