"""The seam between the runtime and wherever parked KV state lives."""

from dataclasses import dataclass
from typing import Protocol

from .state import KVState


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a park or a fetch did: the tier, the bytes, and whom it displaced."""

    tier: str
    nbytes: int
    evicted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStat:
    """How full a store is; ``budget_bytes`` is None where there is no limit."""

    states: int
    stored_bytes: int
    budget_bytes: int | None
    evictions: int


class StateStore(Protocol):
    """Keeps parked KV states by key; one state per key, the last one parked.

    A store verifies what it returns: ``fetch`` never yields a state that differs from
    what was parked. Cancelling a call leaves the key either as it was or as it was to
    become, never in between.
    """

    async def park(self, state: KVState) -> Receipt:
        """Keep *state* under its key; raise StoreFull when it can't ever fit.

        A state that does not begin at token 0 is added to what the key holds; raises
        StateMissing where that does not end right before it.
        """
        ...

    async def fetch(self, key: str) -> tuple[KVState, Receipt]:
        """Return the verified state; raise StateMissing or StateCorrupt."""
        ...

    async def drop(self, key: str) -> None:
        """Forget the key; dropping what isn't there is no error."""
        ...

    async def stat(self) -> StoreStat:
        """Return how full the store is."""
        ...

    async def aclose(self) -> None:
        """Release everything; the store must not be used afterwards."""
        ...
