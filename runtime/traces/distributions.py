"""What the generator knows about real agents: rounded, measured figures.

Tool latencies, the mix of tools and the share of errors: 62 sessions of Claude Code on
cloud models with 2,428 tool calls (AgentCgroup, sets "haiku" and "batch_swebench"; our
own measurement of its session files). User waits and model time: 710 traces of the Weka
cc-traces collection with 49,334 requests. Where another source is used, it is named.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass

from ..tool_class import ToolClass


@dataclass(frozen=True, slots=True)
class QuantileTable:
    """A distribution given by some of its quantiles, as (share, seconds)."""

    points: tuple[tuple[float, float], ...]

    def at(self, share: float) -> float:
        """Return the quantile at *share* (0 to 1) in seconds.

        Between two points the logarithm of the time is linear in the share: latencies
        span five decades, and a straight line between them would invent a slow middle.

        >>> QuantileTable(((0.0, 1.0), (1.0, 100.0))).at(0.5)
        10.0
        """
        shares = [point[0] for point in self.points]
        right = min(max(bisect_right(shares, share), 1), len(shares) - 1)
        (low, low_s), (high, high_s) = self.points[right - 1], self.points[right]
        part = min(max((share - low) / (high - low), 0.0), 1.0)
        return low_s * math.pow(high_s / low_s, part)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolShape:
    """One tool: how often it is called (a weight) and how long it takes.

    ``latency_s`` is that of calls that end by themselves; calls that run into their
    time limit are an atom of their own, since a limit is no tail.
    """

    name: str
    class_name: ToolClass
    weight: int
    latency_s: QuantileTable
    may_time_out: bool = False


def _table(*seconds: float) -> QuantileTable:
    """Give the seconds at 0, 5, 10, 25, 50, 75, 90, 95, 99 and 100 percent."""
    shares = (0.0, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
    return QuantileTable(tuple(zip(shares, seconds, strict=True)))


def _bash(class_name: ToolClass, weight: int, *seconds: float) -> ToolShape:
    """Shape one kind of shell call; tails are cut below the time limit of 120 s."""
    return ToolShape(
        name="Bash",
        class_name=class_name,
        weight=weight,
        latency_s=_table(*seconds),
        may_time_out=True,
    )


TOOLS: tuple[ToolShape, ...] = (
    # Kinds of Bash: medians and tails of 691 classified calls in both sets; quartiles,
    # and all of git and other, of the 438 calls in 26 of their sessions.
    _bash("test", 350, 0.06, 0.45, 0.60, 1.1, 1.7, 2.8, 7.5, 15.0, 75.0, 118.0),
    _bash("shell", 300, 0.03, 0.05, 0.09, 0.15, 0.55, 1.15, 1.6, 1.9, 10.0, 40.0),
    _bash("explore", 280, 0.025, 0.03, 0.035, 0.045, 0.09, 0.4, 1.0, 1.5, 2.9, 12.0),
    _bash("git", 230, 0.026, 0.035, 0.045, 0.085, 0.15, 0.6, 1.1, 1.5, 1.9, 2.0),
    _bash("install", 110, 0.75, 0.95, 1.05, 1.3, 1.6, 2.8, 5.4, 12.0, 40.0, 58.0),
    ToolShape(
        name="Read",
        class_name="read",
        weight=490,
        latency_s=_table(0.002, 0.014, 0.019, 0.024, 0.035, 0.12, 0.55, 1.1, 1.8, 2.3),
    ),
    ToolShape(
        name="Edit",
        class_name="edit",
        weight=240,
        latency_s=_table(
            0.007, 0.017, 0.020, 0.030, 0.039, 0.060, 0.078, 0.089, 0.12, 0.40
        ),
    ),
    ToolShape(
        name="TodoWrite",
        class_name="plan",
        weight=220,
        latency_s=_table(
            0.014, 0.017, 0.018, 0.021, 0.027, 0.037, 0.055, 0.080, 0.15, 0.50
        ),
    ),
    ToolShape(
        name="Grep",
        class_name="search",
        weight=190,
        latency_s=_table(0.016, 0.027, 0.029, 0.033, 0.043, 0.067, 0.61, 1.1, 1.7, 2.3),
    ),
    ToolShape(
        name="Write",
        class_name="edit",
        weight=52,
        latency_s=_table(
            0.015, 0.018, 0.020, 0.026, 0.036, 0.052, 0.066, 0.075, 0.088, 0.091
        ),
    ),
    ToolShape(
        name="Glob",
        class_name="search",
        weight=48,
        latency_s=_table(0.024, 0.029, 0.033, 0.053, 0.28, 0.78, 1.3, 2.3, 3.1, 3.2),
    ),
    ToolShape(
        name="WebFetch",
        class_name="web",
        weight=11,
        latency_s=_table(3.6, 3.6, 3.6, 4.8, 7.4, 8.7, 9.1, 11.0, 13.0, 13.3),
    ),
    ToolShape(
        name="WebSearch",
        class_name="web",
        weight=9,
        latency_s=_table(6.1, 6.7, 7.2, 8.5, 13.0, 15.6, 16.1, 16.6, 17.0, 17.1),
    ),
)
"""The tools besides Task, which lasts as long as its subagent; weights are calls."""

TIMEOUT_S = 120.0
"""Claude Code's default limit of a Bash call."""

TIMEOUT_SHARE = 0.0063
"""8 of 1,273 Bash calls reported "timed out after"."""

ERROR_SHARE = 0.12
"""286 of 2,428 calls returned an error."""

PARALLEL_SHARE = 0.105
"""790 of 7,539 messages that call tools call more than one (all AgentCgroup sets)."""

PARALLEL_COUNTS = ((2, 650), (3, 122), (4, 18))
"""How many tools such a message calls, with the number of messages."""

STEP_COUNT_SIGMA = 0.5
"""Spread of a lognormal with p50 18 and p90 34 model calls in a session."""

APPEND_TOKENS = 480.0
"""Median of new tokens a step (441 and 522 in the two sets, 713 in Weka)."""

APPEND_SIGMA = 1.2
"""Spread of a lognormal whose p90 is about 4.6 times its median."""

OUTPUT_TOKENS = 180.0
"""Median output (145 in the local AgentCgroup set, 216 in Weka)."""

OUTPUT_SIGMA = 1.11
"""Spread of a lognormal with p50 216 and p90 898."""

SYSTEM_TOKENS = 13_000
"""System prompt and tool definitions: most of a first input of about 15,000 tokens."""

FIRST_MESSAGE_TOKENS = 2_000.0
"""Median of the rest of the first input."""

FIRST_MESSAGE_SIGMA = 0.5
"""Spread of first messages; an assumption, first inputs being 11,000 to 17,000."""

USER_WAIT_S = 127.0
"""Median wait for the user between two turns."""

_USER_WAIT_S = (2.0, 9.0, 16.0, 40.0, USER_WAIT_S, 410.0, 1540.0, 3090.0, 6850.0, 72e3)

USER_WAITS = QuantileTable(
    tuple(
        (share, wait_s / USER_WAIT_S) for share, wait_s in _table(*_USER_WAIT_S).points
    )
)
"""Waits for the user, as multiples of their median."""


def model_call_s(input_tokens: int, new_tokens: int, output_tokens: int) -> float:
    """Return how long a hosted model takes for one call, in seconds.

    Least absolute deviations over the Weka traces: 0.97 s, 64 output tokens a second,
    and a little for each thousand tokens of input.
    """
    return (
        0.97
        + 0.0156 * output_tokens
        + 0.0148 * new_tokens / 1000
        + 0.0120 * input_tokens / 1000
    )
