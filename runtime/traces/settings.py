"""What a generated trace shall look like."""

import math
import shlex
from dataclasses import dataclass, fields

from . import distributions as measured
from .errors import TraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """What to generate; the defaults are the measured shape of coding agents.

    Token settings are medians. ``token_spread`` multiplies the measured spreads of all
    token counts; with 0 each is its median. ``token_scale`` and ``time_scale`` apply to
    the finished trace. A probability is one for each step but the last.
    """

    seed: int = 0
    sessions: int = 20
    """Sessions that nobody spawned; subagents come on top."""
    arrivals_per_s: float = 0.05
    mean_steps: float = 20.0
    subagent_mean_steps: float = 12.0
    subagent_probability: float = 0.02
    user_turn_probability: float = 0.05
    user_wait_s: float = measured.USER_WAIT_S
    parallel_share: float = measured.PARALLEL_SHARE
    error_share: float = measured.ERROR_SHARE
    timeout_share: float = measured.TIMEOUT_SHARE
    """Share of shell calls that hang until their limit."""
    timeout_s: float = measured.TIMEOUT_S
    """Limit of a shell call; one that would last longer ends here too."""
    system_tokens: int = measured.SYSTEM_TOKENS
    first_message_tokens: float = measured.FIRST_MESSAGE_TOKENS
    append_tokens: float = measured.APPEND_TOKENS
    output_tokens: float = measured.OUTPUT_TOKENS
    token_spread: float = 1.0
    token_scale: float = 1.0
    time_scale: float = 1.0

    def command_line(self) -> str:
        """Return the command that generates this trace, defaults left out."""
        words = ["kvalet", "traces", "generate", "--seed", str(self.seed)]
        for setting in fields(self)[1:]:
            value = getattr(self, setting.name)
            if value != setting.default:
                option = "--" + setting.name.replace("_", "-")
                words += [option, repr(value).removesuffix(".0")]
        return shlex.join(words)

    def check(self) -> None:
        """Raise TraceError where a setting is out of its range."""
        for setting in fields(self):
            value: float = getattr(self, setting.name)
            low, high = _RANGES.get(setting.name, (0.0, math.inf))
            if not (math.isfinite(value) and low <= value <= high):
                raise TraceError(
                    f"{setting.name}: {value} is out of range; expected {low:g} to "
                    f"{high:g}"
                )
        if self.user_turn_probability + self.subagent_probability > 1:
            raise TraceError(
                "user_turn_probability and subagent_probability: "
                f"{self.user_turn_probability} and {self.subagent_probability} are "
                "more than 1 together"
            )


_RANGES = {
    "seed": (-math.inf, math.inf),
    "sessions": (1, 1_000_000),
    "arrivals_per_s": (1e-6, math.inf),
    "mean_steps": (1, 100_000),
    "subagent_mean_steps": (1, 100_000),
    "subagent_probability": (0, 1),
    "user_turn_probability": (0, 1),
    "parallel_share": (0, 1),
    "error_share": (0, 1),
    "timeout_share": (0, 1),
    "timeout_s": (0.001, math.inf),
    "first_message_tokens": (1, math.inf),
    "append_tokens": (1, math.inf),
    "output_tokens": (1, math.inf),
    "token_scale": (1e-9, math.inf),
}
"""Least and greatest value; everything else only has to be positive or zero."""
