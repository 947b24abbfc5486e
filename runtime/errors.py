"""What the runtime raises, and the whole tree of errors that a caller can meet.

    KvaletError                 runtime/errors.py, this file
    + TurnRefused               the turn can never run on this backend
    + SessionBusy               a session with a turn in progress can't be closed
    + SessionEnded              the session or its runtime is closed
    + Unsupported               the backend cannot do what was asked of it
    + WrongInput                a setting, file or argument of the user's
    SchedulerError              scheduler/errors.py
    StateStoreError             state_store/errors.py (never reaches an agent)
    BackendError                backends/errors.py
    TraceError                  runtime/traces/errors.py

The folders below have roots of their own: a shared one would need a home below them.
"""


class KvaletError(Exception):
    """Root of what the runtime itself raises."""


class TurnRefused(KvaletError):
    """The turn can never run on this backend."""


class SessionBusy(KvaletError):
    """The session has a turn in progress."""


class SessionEnded(KvaletError):
    """The session, or the runtime that it belongs to, is closed."""


class Unsupported(KvaletError):
    """The backend cannot do what was asked of it."""


class WrongInput(KvaletError):
    """A setting, file or argument of the user's makes no sense."""
