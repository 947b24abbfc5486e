"""The books of one accelerator: who holds which slot, and how many KV tokens.

Tokens are reserved when a turn is admitted (its prompt and all that it may sample),
cut down to what the engine really holds when it ends, and given back when the state is
released. The books are never overdrawn: an entry that would do so raises LedgerError
and changes nothing.

    >>> books = Ledger(slots=2, kv_tokens=100)
    >>> books.open(SessionId("a"), 60)
    0
    >>> books.free_tokens, books.free_slots
    (40, 1)
"""

import heapq
from dataclasses import dataclass

from .errors import InvalidSetting, LedgerError
from .events import SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What an accelerator holds; ``context_tokens`` is the limit of one sequence.

    A token's state has ``bytes_per_token`` (0: unknown). It can be copied out if the
    backend ``exports_kv``, without the rows that the store has if it ``exports_rows``,
    and bit by bit at no extra cost if it ``exports_slices``.
    """

    slots: int
    kv_tokens: int
    context_tokens: int
    bytes_per_token: int = 0
    exports_kv: bool = True
    exports_rows: bool = False
    exports_slices: bool = False

    def __post_init__(self) -> None:
        for name in ("slots", "kv_tokens", "context_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise InvalidSetting(f"{name} must be at least 1, not {value}")


@dataclass(slots=True, eq=False)
class _Holding:
    slot: int
    tokens: int


class Ledger:
    """Slots and KV tokens; slots are given out lowest first, so that runs repeat."""

    def __init__(self, *, slots: int, kv_tokens: int) -> None:
        self._slots = slots
        self._kv_tokens = kv_tokens
        self._free = list(range(slots))
        self._holdings: dict[SessionId, _Holding] = {}
        self._reserved = 0

    @property
    def free_tokens(self) -> int:
        """KV tokens that nobody has reserved."""
        return self._kv_tokens - self._reserved

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    @property
    def reserved_tokens(self) -> int:
        """KV tokens reserved by all sessions together."""
        return self._reserved

    @property
    def holders(self) -> int:
        """How many sessions hold a slot."""
        return len(self._holdings)

    @property
    def sessions(self) -> tuple[SessionId, ...]:
        """The sessions that hold a slot."""
        return tuple(self._holdings)

    def held_tokens(self, session: SessionId) -> int:
        """KV tokens that *session* has reserved; 0 if it holds no slot."""
        holding = self._holdings.get(session)
        return 0 if holding is None else holding.tokens

    def slot(self, session: SessionId) -> int | None:
        """Return the slot that *session* holds, if any."""
        holding = self._holdings.get(session)
        return None if holding is None else holding.slot

    def open(self, session: SessionId, tokens: int) -> int:
        """Give *session* a slot and *tokens*; return the slot."""
        if session in self._holdings:
            raise LedgerError(f"session {session!r} holds a slot already")
        if not self._free:
            raise LedgerError(f"no slot is free for session {session!r}")
        self._check(tokens, tokens, session)
        slot = heapq.heappop(self._free)
        self._holdings[session] = _Holding(slot, tokens)
        self._reserved += tokens
        return slot

    def resize(self, session: SessionId, tokens: int) -> None:
        """Make *session*'s reservation *tokens*, more or less than now."""
        holding = self._holding(session)
        self._check(tokens, tokens - holding.tokens, session)
        self._reserved += tokens - holding.tokens
        holding.tokens = tokens

    def close(self, session: SessionId) -> None:
        """Take back slot and tokens of *session*."""
        holding = self._holding(session)
        del self._holdings[session]
        heapq.heappush(self._free, holding.slot)
        self._reserved -= holding.tokens

    def check_integrity(self) -> None:
        """Raise LedgerError if the books do not add up."""
        held = sum(holding.tokens for holding in self._holdings.values())
        if held != self._reserved or not 0 <= held <= self._kv_tokens:
            raise LedgerError(
                f"{held} tokens are held, {self._reserved} are booked, "
                f"{self._kv_tokens} exist"
            )
        slots = sorted([*self._free, *(h.slot for h in self._holdings.values())])
        if slots != list(range(self._slots)):
            raise LedgerError(f"slots are lost or held twice: {slots}")

    def _holding(self, session: SessionId) -> _Holding:
        holding = self._holdings.get(session)
        if holding is None:
            raise LedgerError(f"session {session!r} holds no slot")
        return holding

    def _check(self, tokens: int, growth: int, session: SessionId) -> None:
        if tokens < 0:
            raise LedgerError(f"session {session!r} cannot hold {tokens} tokens")
        if growth > self.free_tokens:
            raise LedgerError(
                f"session {session!r} needs {growth} more tokens, "
                f"{self.free_tokens} are free"
            )
