"""The command line: 0 done, 2 wrong input, 1 anything else, 130 interrupted.

Errors that a user can cause are one sentence on standard error, never a traceback.
"""

import sys
from typing import cast

import typer

from ...backends import BackendError, EngineStartError
from ...scheduler import InvalidSetting
from ...state_store import StateStoreError, StoreUnusable
from ..errors import KvaletError, WrongInput
from ..traces import TraceError
from . import calibrate, doctor, replay, sessions, traces

__all__ = ["main"]

app = typer.Typer(
    name="kvalet",
    help="Keep, park or drop KV state while tools run; replay what that saves.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
app.command("replay")(replay.replay)
app.command("calibrate")(calibrate.calibrate_command)
app.command("doctor")(doctor.doctor)
app.add_typer(sessions.app, name="sessions")
app.add_typer(traces.app, name="traces", help="Generate, check and convert traces.")

_WRONG_INPUT = (
    WrongInput,
    InvalidSetting,
    TraceError,
    EngineStartError,
    StoreUnusable,
)
_KNOWN = (*_WRONG_INPUT, KvaletError, BackendError, StateStoreError)


def main() -> None:
    """Run the command line and leave with its exit status."""
    try:
        app()
    except KeyboardInterrupt:
        _leave(130, "interrupted")
    except _KNOWN as error:
        _explain(error)
    except ExceptionGroup as group:
        # Agents run side by side; what the first of them met is what there is to say.
        known = group.subgroup(_KNOWN)
        if known is None:
            raise
        _explain(_first(known))
    except BrokenPipeError:
        sys.stderr.close()  # whoever read us has gone, and wants no complaint
        sys.exit(1)


def _explain(error: Exception) -> None:
    _leave(2 if isinstance(error, _WRONG_INPUT) else 1, str(error))


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error


def _leave(status: int, sentence: str) -> None:
    print(f"kvalet: {sentence}", file=sys.stderr)
    sys.exit(status)
