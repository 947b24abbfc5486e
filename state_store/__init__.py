"""Where parked KV state lives: memory, disk, Redis, tiers; one protocol for all."""

from .disk import DiskStore
from .errors import (
    StateCorrupt,
    StateLeased,
    StateMissing,
    StateStoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnusable,
)
from .keys import session_of, state_key, tenant_of
from .memory import MemoryStore
from .open import open_store
from .state import (
    BLOCK_TOKENS,
    KVState,
    Manifest,
    Payload,
    Segment,
    checksum,
    hash_token_ids,
    token_blocks,
)
from .store import Inventory, Owner, Receipt, StateStore, StoreStat
from .tiered import TieredStore

__all__ = [
    "BLOCK_TOKENS",
    "DiskStore",
    "Inventory",
    "KVState",
    "Manifest",
    "MemoryStore",
    "Owner",
    "Payload",
    "Receipt",
    "Segment",
    "StateCorrupt",
    "StateLeased",
    "StateMissing",
    "StateStore",
    "StateStoreError",
    "StoreFull",
    "StoreStat",
    "StoreUnavailable",
    "StoreUnusable",
    "TieredStore",
    "checksum",
    "hash_token_ids",
    "open_store",
    "session_of",
    "state_key",
    "tenant_of",
    "token_blocks",
]
