"""Everything that can happen to a session, as data.

One vocabulary for the scheduler (which applies events), the logs (which print them) and
the replay (which causes them). Times are seconds on the runtime's clock. Events of the
first group come from outside; those of the last group are the scheduler's own acts,
which it applies to itself while it plans.

They are structs of msgspec rather than dataclasses: a replay makes a dozen for every
turn, at a fifth of a frozen dataclass's cost, and they can be written as they are.
"""

from typing import NewType

import msgspec

SessionId = NewType("SessionId", str)
CallId = NewType("CallId", str)


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What all events have: when, and to which session."""

    at_s: float
    session: SessionId


# ---- from the agent ----------------------------------------------------------------


class SessionOpened(Event, frozen=True, kw_only=True, gc=False):
    """A session exists now; ``parent`` is the session whose tool it is, if any.

    Tenants share the accelerator by ``weight``; a higher ``priority`` goes first.
    ``blocking``: a tool call of the parent waits for its end. ``forked_tokens`` is with
    how many tokens of the parent's conversation it begins.
    """

    parent: SessionId | None = None
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    blocking: bool = True
    forked_tokens: int = 0


class SessionClosed(Event, frozen=True, kw_only=True, gc=False):
    """No further turn will come; whatever is held for the session may go.

    ``kept``: but not its copy in the store, which is completed first. It may be found
    there later, here or elsewhere.
    """

    kept: bool = False


class TurnSubmitted(Event, frozen=True, kw_only=True, gc=False):
    """A model call: prompt length, how much of it is unchanged, how much may follow.

    ``prefix_tokens`` counts the leading tokens that are those of the session's state.
    ``deadline_s`` is when the first token should be there.
    """

    prompt_tokens: int
    prefix_tokens: int
    max_output_tokens: int
    deadline_s: float | None = None


class TurnAborted(Event, frozen=True, kw_only=True, gc=False):
    """The turn ended without a result; its accelerator work has stopped."""

    reason: str


class ToolStarted(Event, frozen=True, kw_only=True, gc=False):
    """A tool call began; the class is finer than the name where that is a shell.

    ``expected_s`` is how long it will take, if somebody knows.
    """

    call: CallId
    tool: str
    tool_class: str = "other"
    expected_s: float | None = None


class ToolEnded(Event, frozen=True, kw_only=True, gc=False):
    """A tool call ended: ok, error, timeout or cancelled."""

    call: CallId
    tool: str
    seconds: float
    status: str
    tool_class: str = "other"


# ---- from the accelerator and the store ----------------------------------------------


class PrefillDone(Event, frozen=True, kw_only=True, gc=False):
    """The prompt's state is on the accelerator.

    ``expected_tokens`` of it should have been reused; less means that the engine had
    lost, or had never really taken, what was believed to be there. ``verified`` says so
    of a state that had just been restored, and is None of any other.
    """

    computed_tokens: int
    reused_tokens: int
    expected_tokens: int
    verified: bool | None = None
    busy_s: float | None = None
    """Time that the accelerator spent, where the backend tells."""


class PrefillAdvanced(Event, frozen=True, kw_only=True, gc=False):
    """The first ``kv_tokens`` of the prompt are on the accelerator, the rest follows.

    The other fields are those of ``PrefillDone``, for this part.
    """

    kv_tokens: int
    computed_tokens: int
    reused_tokens: int
    expected_tokens: int
    verified: bool | None = None
    busy_s: float | None = None


class DecodeDone(Event, frozen=True, kw_only=True, gc=False):
    """The answer is complete; the state now holds ``kv_tokens``."""

    output_tokens: int
    kv_tokens: int


class Copied(Event, frozen=True, kw_only=True, gc=False):
    """The state up to ``kv_tokens`` is in the store as well."""

    kv_tokens: int
    nbytes: int
    seconds: float
    tier: str


class CopyFailed(Event, frozen=True, kw_only=True, gc=False):
    """The state could not be copied; it stays where it is."""

    reason: str


class Restored(Event, frozen=True, kw_only=True, gc=False):
    """The parked state is back on the accelerator."""

    kv_tokens: int
    nbytes: int
    seconds: float
    tier: str


class RestoreFailed(Event, frozen=True, kw_only=True, gc=False):
    """The parked state could not be used; it counts as lost."""

    reason: str


class CopyLost(Event, frozen=True, kw_only=True, gc=False):
    """The store no longer has the session's copy (evicted, expired)."""


class CopyFound(Event, frozen=True, kw_only=True, gc=False):
    """The store has a state of a session that has none here yet.

    Its first ``kv_tokens`` lead the coming prompt. Somebody else has left it, or this
    process before it was started anew.
    """

    kv_tokens: int


class CopyMoved(Event, frozen=True, kw_only=True, gc=False):
    """The session's copy is in another tier of the store now: evicted, or promoted."""

    tier: str


class EngineRestarted(Event, frozen=True, kw_only=True, gc=False):
    """The engine was lost and runs again, empty; ``session`` has noticed it.

    It concerns every session whose state was on the accelerator.
    """


# ---- the scheduler's own acts --------------------------------------------------------


class TurnRejected(Event, frozen=True, kw_only=True, gc=False):
    """The turn can never run here."""

    reason: str


class TurnAdmitted(Event, frozen=True, kw_only=True, gc=False):
    """Slot and KV tokens are reserved; ``forced`` if only the age bound got it in.

    ``recomputed``: its parked state is not restored, computing it again is cheaper.
    """

    slot: int
    forced: bool
    recomputed: bool = False


class PrefillStarted(Event, frozen=True, kw_only=True, gc=False):
    """The accelerator works on the prompt, up to ``until_tokens`` (None: all of it)."""

    slot: int
    until_tokens: int | None = None


class DecodeStarted(Event, frozen=True, kw_only=True, gc=False):
    """The accelerator samples the answer."""

    slot: int


class CopyStarted(Event, frozen=True, kw_only=True, gc=False):
    """The state up to ``kv_tokens`` is being copied to the store.

    The rows before ``first_token`` are there already.
    """

    slot: int
    kv_tokens: int
    first_token: int = 0


class RestoreStarted(Event, frozen=True, kw_only=True, gc=False):
    """The parked state, ``kv_tokens`` long, is being copied back.

    ``ahead``: before its turn has come, on the guess that it soon will. ``source`` is
    whose copy it is, if not the session's own.
    """

    slot: int
    kv_tokens: int
    ahead: bool = False
    source: SessionId | None = None


class Released(Event, frozen=True, kw_only=True, gc=False):
    """The state left the accelerator; its copy, if any, is what remains."""

    slot: int
    kept_tokens: int


class CopyForgotten(Event, frozen=True, kw_only=True, gc=False):
    """The copy in the store is of no use any more and is to be dropped."""


class CopyLent(Event, frozen=True, kw_only=True, gc=False):
    """A fork may begin from ``kv_tokens`` that ``source`` has in the store; 0: no more.

    It follows from what has happened to the lender, and is in no plan.
    """

    source: SessionId
    kv_tokens: int
