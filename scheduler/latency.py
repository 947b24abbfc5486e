"""How much longer a tool call will take, given its name, its class and its age.

What a tool did counts most, then what its class did, then what all tools did, and at
the bottom a prior: expected remaining = elapsed. So the first observation already
tells, and the thousandth hears only its own tool. User waits go under the class "user"
and never mix with tools.

    >>> model = LatencyModel()
    >>> round(model.remaining_s("Bash", "test", 1000.0) / 1000.0)
    1
    >>> for _ in range(20):
    ...     model.observe(
    ...         tool="Bash", tool_class="test", seconds=120.0, status="timeout"
    ...     )
    >>> round(model.remaining_s("Bash", "test", 100.0))
    20
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import msgspec

from .errors import InvalidSetting
from .levels import Levels, LevelsRecord

SCHEMA = "kvalet.latency/1"
"""What an encoded model calls itself."""

_STATUSES = frozenset({"ok", "error", "timeout", "cancelled"})
_OVERLAP_FIRST = 1 / 64
_OVERLAP_STEP = 1.5
_OVERLAP_NEGLIGIBLE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that has run for ``elapsed_s`` and still does."""

    tool: str
    tool_class: str
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCounts:
    """How many calls of a tool were seen, and how many of them ended in which way."""

    count: int
    errors: int
    timeouts: int
    cancelled: int


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: str
    half_life_calls: Annotated[float, msgspec.Meta(ge=1)] | None
    most_tools: Annotated[int, msgspec.Meta(ge=1)]
    levels: LevelsRecord


class LatencyModel:
    """Learns how long calls take; some 2 KB a tool of one class, for any history.

    A call weighs half in its tool's distribution when *half_life_calls* more have come,
    and less when the tool changes its pace; with None nothing fades ever. Beyond
    *most_tools* the tool that was longest unseen is forgotten; its class still knows.
    """

    def __init__(
        self, *, half_life_calls: float | None = 400.0, most_tools: int = 1_000
    ) -> None:
        if half_life_calls is not None and not 1.0 <= half_life_calls < math.inf:
            raise InvalidSetting(
                f"half_life_calls must be at least 1, or None, not {half_life_calls}"
            )
        if most_tools < 1:
            raise InvalidSetting(f"most_tools must be at least 1, not {most_tools}")
        self._half_life_calls = half_life_calls
        self._most_tools = most_tools
        self._levels = Levels(half_life_calls=half_life_calls, most_tools=most_tools)

    def observe(
        self, *, tool: str, tool_class: str, seconds: float, status: str
    ) -> None:
        """Learn from a call that ended after *seconds*: ok, error or timeout.

        One that was cancelled would have taken longer than *seconds*. Raises
        InvalidSetting for any other status, and for times that are none.
        """
        if not 0.0 <= seconds < math.inf:
            raise InvalidSetting(f"a call cannot take {seconds} seconds")
        if status not in _STATUSES:
            raise InvalidSetting(f"a call cannot end as {status!r}")
        self._levels.observe(tool, tool_class, seconds, status)

    def remaining_s(self, tool: str, tool_class: str, elapsed_s: float) -> float:
        """Return the expected remaining seconds of a call that has run *elapsed_s*.

        Always finite; beyond all that was ever seen it is *elapsed_s* again.
        """
        return self._levels.curve(tool, tool_class).remaining_s(elapsed_s)

    def survival(
        self, tool: str, tool_class: str, elapsed_s: float, more_s: float
    ) -> float:
        """Return the chance that the call still runs *more_s* from now."""
        return self._levels.curve(tool, tool_class).outlives(elapsed_s, more_s)

    def quantile_s(
        self, tool: str, tool_class: str, share: float, elapsed_s: float = 0.0
    ) -> float:
        """Return in how many seconds from now *share* of such calls will have ended."""
        if not 0.0 <= share < 1.0:
            raise InvalidSetting(f"share must be at least 0 and below 1, not {share}")
        return self._levels.curve(tool, tool_class).quantile_s(share, elapsed_s)

    def joint_remaining_s(self, calls: Sequence[OpenCall]) -> float:
        """Return the expected seconds until the last of *calls* has ended.

        The calls are taken as independent. The mean of the longest is the sum of all
        means less the integral of what overlaps, which has no heavy tail.
        """
        curves = [self._levels.curve(call.tool, call.tool_class) for call in calls]
        pairs = [(curve, c.elapsed_s) for curve, c in zip(curves, calls, strict=True)]
        means = [curve.remaining_s(elapsed_s) for curve, elapsed_s in pairs]
        total_s, longest_s = sum(means), max(means, default=0.0)
        if len(means) < 2:
            return total_s
        overlap_s, at_s, next_s = 0.0, 0.0, longest_s * _OVERLAP_FIRST
        before = len(means) - 1.0
        while at_s < longest_s or before * at_s > _OVERLAP_NEGLIGIBLE * total_s:
            alive = [curve.outlives(elapsed_s, next_s) for curve, elapsed_s in pairs]
            after = sum(alive) - 1.0 + math.prod([1.0 - chance for chance in alive])
            overlap_s += (before + after) / 2 * (next_s - at_s)
            before, at_s, next_s = after, next_s, next_s * _OVERLAP_STEP
        return min(total_s, max(longest_s, total_s - overlap_s))

    def joint_survival(self, calls: Sequence[OpenCall], more_s: float) -> float:
        """Return the chance that any of *calls* still runs *more_s* from now."""
        return 1.0 - math.prod(
            1.0 - self.survival(call.tool, call.tool_class, call.elapsed_s, more_s)
            for call in calls
        )

    def counts(self, tool: str) -> ToolCounts:
        """Return how many calls of this tool were seen, in all its classes."""
        seen = list(self._levels.sketches(tool))
        return ToolCounts(
            count=sum(sketch.count for sketch in seen),
            errors=sum(sketch.errors for sketch in seen),
            timeouts=sum(sketch.timeouts for sketch in seen),
            cancelled=sum(sketch.cancelled for sketch in seen),
        )

    def merge(self, other: "LatencyModel") -> None:
        """Learn what *other* has learned, as if at the same time."""
        self._levels.merge(other._levels)

    def encode(self) -> bytes:
        """Return all that was learned; equal models give equal bytes."""
        return msgspec.msgpack.encode(
            _Record(
                schema=SCHEMA,
                half_life_calls=self._half_life_calls,
                most_tools=self._most_tools,
                levels=self._levels.record(),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the model that was encoded; InvalidSetting for anything else."""
        try:
            record = msgspec.msgpack.decode(data, type=_Record)
        except msgspec.DecodeError as error:
            raise InvalidSetting(
                f"these {len(data)} bytes are no latency model: {error}"
            ) from error
        if record.schema != SCHEMA:
            raise InvalidSetting(
                f"this latency model is a {record.schema!r}, not a {SCHEMA!r}"
            )
        model = cls(
            half_life_calls=record.half_life_calls, most_tools=record.most_tools
        )
        model._levels.load(record.levels)
        return model
