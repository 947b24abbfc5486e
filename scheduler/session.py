"""What a session is, and the only ways it may change.

Theory of operation
-------------------
A session is two small machines side by side. Its *phase* says what the turn needs next;
its *residency* says where its KV state is. Every legal move stands in two tables
(``moves.py``); ``Session.apply`` is the only place that assigns ``phase`` or
``residency``.

Three rules couple them:

* ON_ACCELERATOR: the accelerator finishes work only for an admitted turn, and starts it
  only when it is ready (nothing is being copied in or out).
* UNTOUCHED: state is copied or released only while no unit of work runs on it.
* SETTLE: after every event, a waiting session is TOOL if a call is open and IDLE if
  none is; a PARKED session whose copy is gone is ABSENT.

``held_tokens`` counts the tokens of the state, wherever it is; ``copied_tokens`` is how
many of them the store holds too, and a session is *clean* when both agree.
``kv_tokens`` is how many of them lead the coming prompt: all, unless the history was
edited. An edited state is still worth its prefix, so it is restored like any other; the
prefill then overwrites the rest, and from there on an older copy is of no use.

A session may begin as a fork: with the tokens that another one has. Until it has state
of its own it can be PARKED in the other's copy (``source``), which is lent to it.

    >>> s = Session(id=SessionId("a"))
    >>> s.apply(TurnSubmitted(at_s=0, session=s.id, prompt_tokens=9, prefix_tokens=0,
    ...                       max_output_tokens=4))
    >>> s.apply(TurnAdmitted(at_s=0, session=s.id, slot=1, forced=False))
    >>> s.ready
    True
"""

from dataclasses import dataclass, field
from enum import Enum, unique

from .errors import IllegalMove
from .events import (
    CallId,
    Copied,
    CopyForgotten,
    CopyFound,
    CopyLent,
    CopyLost,
    CopyMoved,
    DecodeDone,
    DecodeStarted,
    EngineRestarted,
    Event,
    PrefillAdvanced,
    PrefillDone,
    PrefillStarted,
    Released,
    Restored,
    RestoreFailed,
    RestoreStarted,
    SessionClosed,
    SessionId,
    ToolEnded,
    ToolStarted,
    TurnAborted,
    TurnAdmitted,
    TurnRejected,
    TurnSubmitted,
)
from .moves import (
    MOVES_BOTH,
    NEEDS_READY,
    NEEDS_RUNNING,
    NEEDS_UNTOUCHED,
    PHASE_MOVES,
    RESIDENCY_MOVES,
)
from .moves import Phase as Phase  # they are the session's own words
from .moves import Residency as Residency
from .turn import OpenCall, Turn


@unique
class Departure(Enum):
    """How state leaves the accelerator."""

    PARK = "park"  # copy what is dirty, then release
    DROP = "drop"  # release; an older copy, if any, is what remains


@dataclass(slots=True, eq=False, kw_only=True)
class Session:
    """One lane of one agent's conversation, as the scheduler knows it.

    ``active`` sessions have been let in and not been sent back to wait for their turn;
    ``attained_s`` is the accelerator time that the session has had. ``forked_tokens``
    is with how many tokens of its parent it began, 0 once it has state of its own;
    ``source`` is whose copy it is parked in until then. A tool call of the parent waits
    for ``blocking`` children. ``kept``: its copy outlives it. ``tier`` is where that
    was last known to be, if it was.
    """

    id: SessionId
    parent: SessionId | None = None
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    phase: Phase = Phase.IDLE
    residency: Residency = Residency.ABSENT
    slot: int | None = None
    held_tokens: int = 0
    kv_tokens: int = 0
    copied_tokens: int = 0
    turn: Turn | None = None
    open_calls: dict[CallId, OpenCall] = field(default_factory=dict[CallId, OpenCall])
    waits: int = 0
    waits_since_s: float = 0.0
    idle_since_s: float = 0.0
    idle_after_tool: bool = False
    blocking: bool = True
    children: "dict[SessionId, Session]" = field(
        default_factory=dict[SessionId, "Session"]
    )
    forked_tokens: int = 0
    source: SessionId | None = None
    active: bool = False
    attained_s: float = 0.0
    departure: Departure | None = None
    departure_forced: bool = False
    closed: bool = False
    kept: bool = False
    tier: str | None = None

    @property
    def ready(self) -> bool:
        """Whether the accelerator could work on it right now."""
        turn = self.turn
        if turn is None or not turn.admitted or turn.running:
            return False
        if self.phase is Phase.PREFILL and self.residency is not Residency.RESIDENT:
            parked = self.residency is Residency.PARKED and turn.recomputed
            return parked or self.residency is Residency.ABSENT
        return self.residency is Residency.RESIDENT

    @property
    def waiting(self) -> bool:
        """Whether a tool or the user, not the accelerator, holds it up."""
        return self.turn is None

    @property
    def untouched(self) -> bool:
        """Whether no unit of work has a claim on its state."""
        return self.turn is None or not self.turn.admitted

    @property
    def live_children(self) -> int:
        """How many sessions that it is the parent of are open."""
        return len(self.children)

    @property
    def awaits_child(self) -> bool:
        """Whether a tool call of it cannot end before a child does."""
        return bool(self.open_calls) and any(
            child.blocking for child in self.children.values()
        )

    @property
    def owns_copy(self) -> bool:
        """Whether the store has a copy under its own key that is of use."""
        return self.copied_tokens > 0 and self.source is None

    @property
    def borrows(self) -> bool:
        """Whether it could be restored from another's copy: it has no state yet."""
        turn = self.turn
        if not self.forked_tokens or self.closed or (turn is not None and turn.running):
            return False
        if self.residency is Residency.PARKED:
            return True
        return self.residency is Residency.ABSENT and self.untouched

    @property
    def reusable_tokens(self) -> int:
        """How much of the coming prompt is on the accelerator already."""
        return self.kv_tokens if self.residency is Residency.RESIDENT else 0

    @property
    def dirty_tokens(self) -> int:
        """How much of its state the store lacks."""
        return self.held_tokens - self.copied_tokens

    @property
    def clean(self) -> bool:
        """Whether the store holds all of its state."""
        return self.copied_tokens == self.held_tokens

    def apply(self, event: Event) -> None:
        """Move as the tables say; raise IllegalMove where they say nothing."""
        kind = type(event)
        phase = PHASE_MOVES.get((self.phase, kind))
        residency = RESIDENCY_MOVES.get((self.residency, kind))
        # A prefill moves both machines; every other event moves exactly one.
        moved = (
            phase is not None and residency is not None
            if kind in MOVES_BOTH
            else phase is not None or residency is not None
        )
        if not (moved and self._allows(kind)):
            raise IllegalMove(
                f"{kind.__name__} cannot happen to session {self.id!r} "
                f"in {self.phase.value}/{self.residency.value}"
            )
        self.phase = phase or self.phase
        self.residency = residency or self.residency
        self._note(event)
        self._settle()

    def _allows(self, kind: type[Event]) -> bool:
        if kind in NEEDS_READY:
            return self.ready
        if kind in NEEDS_RUNNING:
            return self.turn is not None and self.turn.running
        if kind in NEEDS_UNTOUCHED:
            return self.untouched
        if kind is TurnSubmitted:
            return not self.closed
        if kind is TurnAdmitted:
            return self.untouched
        if kind is CopyLent:
            return self.borrows
        if kind is CopyFound:
            return self.turn is None and self.slot is None and not self.closed
        return True

    def _note(self, event: Event) -> None:
        """Keep the figures that come with the move."""
        match event:
            case TurnSubmitted():
                self._submit(event)
            case TurnAdmitted():
                turn = self._turn()
                turn.admitted, turn.recomputed = True, event.recomputed
                self.slot = event.slot
                self.active = True
                self.departure = None
                self.departure_forced = False
            case PrefillStarted():
                self._begin_unit(event)
                self._turn().until_tokens = event.until_tokens
                if self.copied_tokens > self.kv_tokens:
                    self.copied_tokens = 0
            case DecodeStarted():
                self._begin_unit(event)
            case PrefillAdvanced():
                self._end_unit(event)
                self.held_tokens = self.kv_tokens = event.kv_tokens
                self._turn().advanced = True
            case PrefillDone():
                self._end_unit(event)
                self.held_tokens = self.kv_tokens = self._turn().prompt_tokens
                self._return_loan()
            case DecodeDone():
                self._end_unit(event)
                self.held_tokens = self.kv_tokens = event.kv_tokens
                self.turn = None
                self._begin_idling(event.at_s, after_tool=False)
            case TurnAborted() | TurnRejected():
                self._abort()
                self._begin_idling(event.at_s, after_tool=False)
            case ToolStarted():
                self.open_calls[event.call] = OpenCall(
                    event.tool, event.tool_class, event.at_s, event.expected_s
                )
            case ToolEnded():
                self._end_call(event)
            case Copied():
                self.copied_tokens, self.tier = event.kv_tokens, event.tier
            case CopyMoved():
                self.tier = event.tier
            case RestoreStarted():
                self.slot = event.slot
            case Restored():
                self._return_loan()
            case CopyLent():
                self._borrow(event)
            case CopyFound():
                self.held_tokens = self.kv_tokens = event.kv_tokens
                self.copied_tokens, self.forked_tokens = event.kv_tokens, 0
            case Released():
                self.slot = None
                self.departure = None
                self.departure_forced = False
                self.held_tokens = self.copied_tokens
                self.kv_tokens = min(self.kv_tokens, self.held_tokens)
            case EngineRestarted():
                self._lose()
            case RestoreFailed() | CopyLost() | CopyForgotten():
                self.copied_tokens, self.tier = 0, None
            case SessionClosed():
                self.closed, self.kept = True, event.kept
                self.departure = Departure.PARK if event.kept else Departure.DROP
                self.departure_forced = False
                self.open_calls.clear()
            case _:
                pass

    def _turn(self) -> Turn:
        if self.turn is None:
            raise IllegalMove(f"session {self.id!r} has no turn in progress")
        return self.turn

    def _begin_idling(self, at_s: float, *, after_tool: bool) -> None:
        """Nothing is known to go on: the agent thinks, or the user does."""
        if not after_tool:
            self.waits_since_s = at_s
        self.idle_since_s, self.idle_after_tool = at_s, after_tool

    def _begin_unit(self, event: Event) -> None:
        turn = self._turn()
        turn.running, turn.unit_began_s = True, event.at_s

    def _end_unit(self, event: Event) -> None:
        turn = self._turn()
        if turn.running:  # a decode that the prefill finished has never begun
            self.attained_s += event.at_s - turn.unit_began_s
            turn.running = False

    def _submit(self, event: TurnSubmitted) -> None:
        self.turn = Turn(
            submitted_s=event.at_s,
            prompt_tokens=event.prompt_tokens,
            prefix_tokens=event.prefix_tokens,
            max_output_tokens=event.max_output_tokens,
            deadline_s=event.deadline_s,
        )
        self.departure = None
        self.departure_forced = False
        self.kv_tokens = min(self.held_tokens, event.prefix_tokens)
        if self.kv_tokens == 0:
            self.copied_tokens = 0  # nothing of it would be reused

    def _borrow(self, event: CopyLent) -> None:
        lent_tokens, turn = event.kv_tokens, self.turn
        if turn is not None and not turn.prefix_tokens:
            lent_tokens = 0  # nothing of it would be reused
        self.held_tokens = self.kv_tokens = self.copied_tokens = lent_tokens
        if turn is not None:
            self.kv_tokens = min(lent_tokens, turn.prefix_tokens)
        self.source = event.source

    def _return_loan(self) -> None:
        """It has state of its own, and no copy of it."""
        self.forked_tokens = 0
        if self.source is not None:
            self.source, self.copied_tokens = None, 0

    def _abort(self) -> None:
        turn = self._turn()
        # Nobody knows what the slot holds now, or it holds a part of this prompt.
        if turn.running or turn.advanced:
            self.held_tokens = self.copied_tokens
            self.departure = Departure.DROP
            self.departure_forced = True
        self.kv_tokens = self.held_tokens
        self.turn = None

    def _lose(self) -> None:
        """What was on the accelerator is gone; a turn at work there hears it itself."""
        if self.residency is Residency.RESIDENT and self.untouched:
            self.held_tokens = self.copied_tokens
            self.kv_tokens = min(self.kv_tokens, self.held_tokens)
            self.departure = Departure.DROP
            self.departure_forced = True

    def _end_call(self, event: ToolEnded) -> None:
        if self.open_calls.pop(event.call, None) is None:
            raise IllegalMove(
                f"tool call {event.call!r} of session {self.id!r} ended "
                "without having started"
            )
        if not self.open_calls:
            self._begin_idling(event.at_s, after_tool=True)
        if not self.open_calls and not self.departure_forced:
            self.departure = None  # it is about to be needed

    def _settle(self) -> None:
        if self.phase is Phase.IDLE and self.open_calls:
            self.phase = Phase.TOOL
            self.waits += 1
        elif self.phase is Phase.TOOL and not self.open_calls:
            self.phase = Phase.IDLE
        if self.copied_tokens == 0:
            self.source = None
            if self.residency is Residency.PARKED:
                self.residency = Residency.ABSENT
        if self.residency is Residency.ABSENT:
            self.held_tokens = self.kv_tokens = 0
