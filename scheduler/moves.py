"""Where a session's phase and residency may go: two tables, and three sets of events.

``session.py`` says what they mean and applies them.
"""

from enum import Enum, unique
from typing import Final

from .events import (
    Copied,
    CopyFailed,
    CopyForgotten,
    CopyFound,
    CopyLent,
    CopyLost,
    CopyMoved,
    CopyStarted,
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
    ToolEnded,
    ToolStarted,
    TurnAborted,
    TurnAdmitted,
    TurnRejected,
    TurnSubmitted,
)


@unique
class Phase(Enum):
    """What the turn needs next."""

    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"
    TOOL = "tool"

    __hash__ = object.__hash__  # the tables are looked up for every event


@unique
class Residency(Enum):
    """Where the KV state is."""

    ABSENT = "absent"  # nowhere: a prefill must compute it
    RESIDENT = "resident"  # on the accelerator
    PARKING = "parking"  # on the accelerator, being copied out
    PARKED = "parked"  # in the state store only
    RESTORING = "restoring"  # being copied back

    __hash__ = object.__hash__


P, R = Phase, Residency

PHASE_MOVES: Final[dict[tuple[Phase, type[Event]], Phase]] = {
    (P.IDLE, TurnSubmitted): P.PREFILL,
    (P.TOOL, TurnSubmitted): P.PREFILL,  # a background call may go on
    (P.PREFILL, TurnRejected): P.IDLE,
    (P.PREFILL, TurnAdmitted): P.PREFILL,
    (P.PREFILL, PrefillStarted): P.PREFILL,
    (P.PREFILL, PrefillAdvanced): P.PREFILL,
    (P.PREFILL, PrefillDone): P.DECODE,
    (P.PREFILL, TurnAborted): P.IDLE,
    (P.DECODE, DecodeStarted): P.DECODE,
    (P.DECODE, DecodeDone): P.IDLE,
    (P.DECODE, TurnAborted): P.IDLE,
    (P.IDLE, SessionClosed): P.IDLE,
    (P.TOOL, SessionClosed): P.IDLE,
    **{(phase, ToolStarted): phase for phase in P},
    **{(phase, ToolEnded): phase for phase in P},
}

RESIDENCY_MOVES: Final[dict[tuple[Residency, type[Event]], Residency]] = {
    (R.ABSENT, PrefillAdvanced): R.RESIDENT,
    (R.RESIDENT, PrefillAdvanced): R.RESIDENT,
    (R.ABSENT, PrefillDone): R.RESIDENT,
    (R.RESIDENT, PrefillDone): R.RESIDENT,
    (R.PARKED, PrefillDone): R.RESIDENT,  # computed again, the copy stays
    (R.RESIDENT, CopyStarted): R.PARKING,
    (R.PARKING, Copied): R.RESIDENT,
    (R.PARKING, CopyFailed): R.RESIDENT,
    (R.PARKED, RestoreStarted): R.RESTORING,
    (R.RESTORING, Restored): R.RESIDENT,
    (R.RESTORING, RestoreFailed): R.ABSENT,
    (R.ABSENT, CopyFound): R.PARKED,
    (R.ABSENT, CopyLent): R.PARKED,  # in another session's copy
    (R.PARKED, CopyLent): R.PARKED,
    (R.RESIDENT, Released): R.PARKED,  # or ABSENT, by SETTLE
    (R.ABSENT, Released): R.PARKED,  # a slot given back before anything was on it
    (R.PARKED, Released): R.PARKED,
    **{(residency, EngineRestarted): residency for residency in R},
    **{(residency, CopyLost): residency for residency in R},
    **{(residency, CopyMoved): residency for residency in R},
    **{(residency, CopyForgotten): residency for residency in R},
}

# ON_ACCELERATOR and UNTOUCHED, as sets of events.
NEEDS_READY: Final = frozenset[type[Event]](
    (
        PrefillStarted,
        DecodeStarted,
    )
)
NEEDS_RUNNING: Final = frozenset[type[Event]]((PrefillAdvanced, PrefillDone))
MOVES_BOTH: Final = frozenset[type[Event]]((PrefillAdvanced, PrefillDone))
NEEDS_UNTOUCHED: Final = frozenset[type[Event]](
    (
        CopyStarted,
        Released,
    )
)
