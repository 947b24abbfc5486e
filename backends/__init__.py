"""What the runtime needs of a model server, and the backends that provide it."""

from .accelerators import ACCELERATOR_NAMES, Accelerator, accelerator
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
from .prefix import common_prefix_tokens
from .simulated import SimulatedBackend

__all__ = [
    "ACCELERATOR_NAMES",
    "Accelerator",
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
    "SimulatedBackend",
    "Tokenizer",
    "accelerator",
    "common_prefix_tokens",
]
