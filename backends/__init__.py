"""What the runtime needs of a model server, and the backends that provide it."""

from .backend import (
    Backend,
    Capabilities,
    Chunk,
    FinishReason,
    Message,
    Prefilled,
    Request,
    Sampling,
    Tokenizer,
)
from .errors import (
    BackendError,
    ContextTooLong,
    EngineLost,
    EngineStartError,
    ExportFailed,
    ImportRefused,
    ModelUnavailable,
)

__all__ = [
    "Backend",
    "BackendError",
    "Capabilities",
    "Chunk",
    "ContextTooLong",
    "EngineLost",
    "EngineStartError",
    "ExportFailed",
    "FinishReason",
    "ImportRefused",
    "Message",
    "ModelUnavailable",
    "Prefilled",
    "Request",
    "Sampling",
    "Tokenizer",
]
