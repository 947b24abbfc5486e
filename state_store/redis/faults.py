"""What an error of the server, the network or the library means to us.

>>> read_fault(ServerReply("OOM command not allowed")).reason
'full'
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from redis import exceptions


class Consequence(Enum):
    """What follows from a fault."""

    OPEN = auto()  # nobody is there, or nothing can be done: don't try again soon
    SLOW = auto()  # not in time: don't try again if it repeats
    FULL = auto()  # takes no writes; reads go on
    NONE = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a call failed, in a word for the counters, and what follows."""

    reason: str
    consequence: Consequence
    text: str


class ServerReply(Exception):
    """The server answered a command of ours with an error."""


UNREACHABLE: Final = "unreachable"
TIMEOUT: Final = "timeout"

_BY_CODE: Final = {
    "OOM": ("full", Consequence.FULL),
    "READONLY": ("read_only", Consequence.OPEN),
    "NOREPLICAS": ("read_only", Consequence.FULL),
    "MISCONF": ("read_only", Consequence.FULL),
    "LOADING": ("loading", Consequence.OPEN),
    "MASTERDOWN": ("failing_over", Consequence.OPEN),
    "CLUSTERDOWN": ("failing_over", Consequence.OPEN),
    "TRYAGAIN": ("failing_over", Consequence.SLOW),
    "MOVED": ("failing_over", Consequence.SLOW),
    "ASK": ("failing_over", Consequence.SLOW),
    "NOAUTH": ("denied", Consequence.OPEN),
    "WRONGPASS": ("denied", Consequence.OPEN),
    "NOPERM": ("denied", Consequence.OPEN),
    "BUSY": ("timeout", Consequence.SLOW),
    "UNBLOCKED": ("failing_over", Consequence.SLOW),
}
_BY_TYPE: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.SlotNotCoveredError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.AskError, "MOVED"),
    (exceptions.AuthenticationError, "WRONGPASS"),
    (exceptions.AuthorizationError, "NOPERM"),
    (exceptions.NoPermissionError, "NOPERM"),
)

Failure: Final = (
    exceptions.RedisError,
    exceptions.RedisClusterException,
    ServerReply,
    OSError,
    TimeoutError,
    EOFError,
)
"""Everything that sending a command can raise."""


def read_fault(error: BaseException) -> Fault:
    """Return what *error*, one of ``Failure``, means."""
    text = str(error) or type(error).__name__
    code = _code(error, text)
    if code is not None:
        return Fault(*_BY_CODE[code], text)
    if isinstance(error, (TimeoutError, exceptions.TimeoutError)):
        return Fault(TIMEOUT, Consequence.SLOW, text)
    if isinstance(error, (ServerReply, exceptions.ResponseError)):
        return Fault("error", Consequence.NONE, text)
    return Fault(UNREACHABLE, Consequence.OPEN, text)


def _code(error: BaseException, text: str) -> str | None:
    for kind, code in _BY_TYPE:
        if isinstance(error, kind):
            return code
    if isinstance(error, (ServerReply, exceptions.ResponseError)):
        # Errors inside of scripts keep their code in some versions, as a word.
        return next((word for word in text.split()[:8] if word in _BY_CODE), None)
    return None
