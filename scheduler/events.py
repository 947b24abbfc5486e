"""Everything that can happen to a session, as data.

One vocabulary for the scheduler (which applies events), the logs (which print them) and
the replay (which causes them). Times are seconds on the runtime's clock. Events of the
first group come from outside; those of the last group are the scheduler's own acts,
which it applies to itself while it plans.
"""

from dataclasses import dataclass
from typing import NewType

SessionId = NewType("SessionId", str)
CallId = NewType("CallId", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have: when, and to which session."""

    at_s: float
    session: SessionId


# ---- from the agent ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened(Event):
    """A session exists now; ``parent`` is the session whose tool it is, if any."""

    parent: SessionId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed(Event):
    """No further turn will come; whatever is held for the session may go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSubmitted(Event):
    """A model call: prompt length, how much of it is unchanged, how much may follow.

    ``prefix_tokens`` counts the leading tokens that are those of the session's state.
    """

    prompt_tokens: int
    prefix_tokens: int
    max_output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAborted(Event):
    """The turn ended without a result; its accelerator work has stopped."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(Event):
    """A tool call began."""

    call: CallId
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded(Event):
    """A tool call ended: ok, error, timeout or cancelled."""

    call: CallId
    tool: str
    seconds: float
    status: str


# ---- from the accelerator and the store ----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillDone(Event):
    """The prompt's state is on the accelerator.

    ``expected_tokens`` of it should have been reused; less means that the engine had
    lost, or had never really taken, what was believed to be there.
    """

    computed_tokens: int
    reused_tokens: int
    expected_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeDone(Event):
    """The answer is complete; the state now holds ``kv_tokens``."""

    output_tokens: int
    kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied(Event):
    """The state up to ``kv_tokens`` is in the store as well."""

    kv_tokens: int
    nbytes: int
    seconds: float
    tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFailed(Event):
    """The state could not be copied; it stays where it is."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Event):
    """The parked state is back on the accelerator."""

    kv_tokens: int
    nbytes: int
    seconds: float
    tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFailed(Event):
    """The parked state could not be used; it counts as lost."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLost(Event):
    """The store no longer has the session's copy (evicted, expired)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRestarted(Event):
    """The engine was lost and runs again, empty; ``session`` has noticed it.

    It concerns every session whose state was on the accelerator.
    """


# ---- the scheduler's own acts --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRejected(Event):
    """The turn can never run here."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAdmitted(Event):
    """Slot and KV tokens are reserved; ``forced`` if only the age bound got it in."""

    slot: int
    forced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillStarted(Event):
    """The accelerator works on the prompt."""

    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStarted(Event):
    """The accelerator samples the answer."""

    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStarted(Event):
    """The state is being copied to the store, all ``kv_tokens`` of it."""

    slot: int
    kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreStarted(Event):
    """The parked state, ``kv_tokens`` long, is being copied back."""

    slot: int
    kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Event):
    """The state left the accelerator; its copy, if any, is what remains."""

    slot: int
    kept_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyForgotten(Event):
    """The copy in the store is of no use any more and is to be dropped."""
