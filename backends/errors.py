"""What a backend raises.

BackendError
+ ContextTooLong        the prompt does not fit one sequence of this backend
+ ImportRefused         the parked state is not one this engine may load
+ ExportFailed          the engine did not hand out a state that can be trusted
+ EngineLost            the engine died or stopped answering
+ CallRefused           the server would not take this call
+ EngineStartError      the engine could not be started (bad model, port in use…)
+ ModelUnavailable      the default model could not be fetched
+ HttpError             backends/http/errors.py: the way to a server
"""


class BackendError(Exception):
    """Root of everything that a backend raises."""


class ContextTooLong(BackendError):
    """The prompt does not fit one sequence of this backend."""


class ImportRefused(BackendError):
    """The parked state is not one that this engine may load; its slot is empty."""


class ExportFailed(BackendError):
    """The engine did not hand out a state that can be trusted."""


class EngineLost(BackendError):
    """The engine died or stopped answering."""


class CallRefused(BackendError):
    """The server would not take this call, and says so with an HTTP status.

    ``prompt_tokens`` and ``limit_tokens`` are there where the prompt is too long.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        prompt_tokens: int | None = None,
        limit_tokens: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


class EngineStartError(BackendError):
    """The engine could not be started."""


class ModelUnavailable(BackendError):
    """The default model could not be fetched."""
