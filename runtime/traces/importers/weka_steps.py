"""What a cc-trace says of one call: what its input shares, and what was waited for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ..schema import GapSource, Next
from .weka_records import Request


class BlockNumbers:
    """Numbers the blocks of a recording, so that no two recordings share a number.

    A block that several inputs hold is one int object: a context of 100k tokens is
    listed again in every step, and most of a recording is such repetition.
    """

    def __init__(self, first: int = 1) -> None:
        self._first = first
        self._numbers: dict[int, int] = {}

    @property
    def following(self) -> int:
        """The first number that is still free."""
        return self._first + len(self._numbers)

    def of(self, ids: Sequence[int], known: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return the numbers of blocks; those of the first ones may be *known*."""
        return known + tuple(map(self._number, ids[len(known) :]))

    def _number(self, id: int) -> int:
        return self._numbers.setdefault(id, self.following)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """What the input of a call has in common with the context before it."""

    blocks: int
    tokens: int | None
    is_cut: bool
    """Whether the previous input was not taken over as a whole."""

    @classmethod
    def of(cls, call: Request, previous: Request | None, block_size: int) -> Self:
        """Compare block ids.

        They only cover whole blocks of an input, and never the answer to it. When all
        of the previous input is there, and room for the answer too, so is the answer:
        an agent goes on from it.
        """
        if previous is None:
            return cls(blocks=0, tokens=0, is_cut=False)
        before, after, total = previous.block_ids, call.block_ids, call.input_tokens
        if before is None or after is None or total is None:
            return cls(blocks=0, tokens=None, is_cut=False)
        blocks = _shared_blocks(before, after)
        if blocks < len(before) or not before:
            tokens = min(blocks * block_size, total)
            return cls(blocks=blocks, tokens=tokens, is_cut=bool(before))
        input_tokens = previous.input_tokens or 0
        context_tokens = input_tokens + (previous.output_tokens or 0)
        tokens = context_tokens if context_tokens <= total else input_tokens
        return cls(blocks=blocks, tokens=min(tokens, total), is_cut=False)


def _shared_blocks(before: Sequence[int], after: Sequence[int]) -> int:
    if after[: len(before)] == before:
        return len(before)
    pairs = enumerate(zip(before, after, strict=False))
    ends = (index for index, (old, new) in pairs if old != new)
    return next(ends, min(len(before), len(after)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGap:
    """The wait between a call and the next one of its lane."""

    next: Next
    gap_ms: int | None = None
    source: GapSource | None = None

    @classmethod
    def of(cls, call: Request, following: Request | None) -> Self:
        """Measure the wait, in whole milliseconds, never negative.

        Where the end of the call is unknown, what is known is start to start.
        """
        if following is None:
            return cls(next="end")
        next = _waits_for(call, following)
        between_s = following.at_s - call.at_s
        if call.llm_s is None:
            return cls(next=next, gap_ms=milliseconds(between_s), source="includes_llm")
        wait_s = following.wait_s
        return cls(
            next=next,
            gap_ms=milliseconds(between_s - call.llm_s if wait_s is None else wait_s),
            source="measured" if next == "user" else "upper_bound",
        )


def _waits_for(call: Request, following: Request) -> Next:
    """Tell a tool's wait from the user's, by what the next input brings.

    After an answer that was not recorded, every input is recorded as text, though the
    next call comes as soon as after tools (median 12 s from start to start, against 14
    after tools and minutes after users, in the April 2026 release): it counts as a
    tool's. An input that holds earlier answers as well is a history that was written
    anew, and tells nothing of what is new in it.
    """
    if call.llm_s is None:
        return "tool"
    kinds = following.input_types
    if kinds and "tool_use" not in kinds:
        return "tool" if "tool_result" in kinds else "user"
    return "tool" if call.stop in (None, "", "tool_use") else "user"


def milliseconds(duration_s: float) -> int:
    """Round to whole milliseconds; clocks that disagree make no negative duration."""
    return max(0, round(duration_s * 1000))
