"""One model call on its way through the accelerator, and the tool calls after it."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True, eq=False, kw_only=True)
class Turn:
    """One model call on its way through the accelerator."""

    submitted_s: float
    prompt_tokens: int
    prefix_tokens: int
    max_output_tokens: int
    deadline_s: float | None = None
    admitted: bool = False
    recomputed: bool = False
    advanced: bool = False
    until_tokens: int | None = None
    running: bool = False
    unit_began_s: float = 0.0

    @property
    def tokens(self) -> int:
        """The most KV tokens that the turn can come to hold."""
        return self.prompt_tokens + self.max_output_tokens


class OpenCall(NamedTuple):
    """A tool call in progress."""

    tool: str
    tool_class: str
    began_s: float
    expected_s: float | None
