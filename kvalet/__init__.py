"""kvalet: an asyncio runtime between agent code and model backends.

    async with kvalet.local(policy="park") as runtime, runtime.session() as session:
        reply = await session.turn("List the files.")
        async with session.tool("Bash"):
            ...  # its KV state leaves the accelerator while this runs

Everything that is public is here; what is not here may move.
"""

from .backends import (
    Backend,
    BackendError,
    Chunk,
    FinishReason,
    Message,
    Sampling,
    SimulatedBackend,
)
from .backends.llama import LlamaBackend
from .runtime.client import Session
from .runtime.clock import run_in_virtual_time
from .runtime.errors import (
    KvaletError,
    SessionBusy,
    SessionEnded,
    TurnRefused,
    Unsupported,
    WrongInput,
)
from .runtime.local import local
from .runtime.runtime import Runtime
from .runtime.tools import ToolCall
from .runtime.turn import Reply, Turn, Usage
from .scheduler import Event, Policy, SchedulerError, SchedulerSettings, parse_policy
from .state_store import (
    DiskStore,
    MemoryStore,
    StateStore,
    StateStoreError,
    TieredStore,
    open_store,
)

__all__ = [
    "Backend",
    "BackendError",
    "Chunk",
    "DiskStore",
    "Event",
    "FinishReason",
    "KvaletError",
    "LlamaBackend",
    "MemoryStore",
    "Message",
    "Policy",
    "Reply",
    "Runtime",
    "Sampling",
    "SchedulerError",
    "SchedulerSettings",
    "Session",
    "SessionBusy",
    "SessionEnded",
    "SimulatedBackend",
    "StateStore",
    "StateStoreError",
    "TieredStore",
    "ToolCall",
    "Turn",
    "TurnRefused",
    "Unsupported",
    "Usage",
    "WrongInput",
    "local",
    "open_store",
    "parse_policy",
    "run_in_virtual_time",
]
