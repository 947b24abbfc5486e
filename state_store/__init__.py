"""Where parked KV state lives: host memory today; every tier behind one protocol."""

from .errors import StateCorrupt, StateMissing, StateStoreError, StoreFull
from .memory import MemoryStore
from .state import KVState, Manifest, Segment, checksum, hash_token_ids
from .store import Receipt, StateStore, StoreStat

__all__ = [
    "KVState",
    "Manifest",
    "MemoryStore",
    "Receipt",
    "Segment",
    "StateCorrupt",
    "StateMissing",
    "StateStore",
    "StateStoreError",
    "StoreFull",
    "StoreStat",
    "checksum",
    "hash_token_ids",
]
