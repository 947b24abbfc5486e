"""When parking pays: copying state out and back against computing it again.

Parking a state takes the link for a save and a restore. Computing it again takes the
accelerator for a prefill of the whole context. Where the first is longer, parking never
pays, and the state is better kept or dropped. Where it is shorter, it pays for every
wait that outlasts both copies, as soon as somebody else needs the memory; while nobody
does, keeping costs nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .errors import InvalidSetting


class Costs(Protocol):
    """What ``CostModel`` knows of this: seconds, or None where nothing is known."""

    def prefill_s(self, new_tokens: int, context_tokens: int) -> float | None:
        """Return the seconds to compute so many tokens behind others."""
        ...

    def save_s(self, nbytes: int, tier: str | None = None) -> float | None:
        """Return the seconds to copy so much out."""
        ...

    def restore_s(self, nbytes: int, tier: str | None = None) -> float | None:
        """Return the seconds to copy so much in."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """What it takes, in seconds, to park or to drop a state of ``context_tokens``.

    ``save_s`` is of the part that the store does not have yet.
    """

    context_tokens: int
    prefill_s: float
    save_s: float
    restore_s: float

    @property
    def moving_s(self) -> float:
        """Seconds for both copies: also the shortest wait that parking is for."""
        return self.save_s + self.restore_s

    @property
    def pays(self) -> bool:
        """Whether both copies take less time than computing the state again."""
        return self.moving_s < self.prefill_s


def break_even(
    costs: Costs,
    *,
    context_tokens: int,
    bytes_per_token: float,
    dirty_tokens: int | None = None,
    tier: str | None = None,
) -> BreakEven | None:
    """Weigh parking one state; None where one of the three costs is not known.

    ``dirty_tokens`` are those that no earlier park has copied, by default all. Raises
    InvalidSetting where tokens have no size.
    """
    if not bytes_per_token > 0:
        raise InvalidSetting(f"bytes_per_token must be above 0, not {bytes_per_token}")
    dirty = context_tokens if dirty_tokens is None else dirty_tokens
    prefill_s = costs.prefill_s(context_tokens, 0)
    save_s = costs.save_s(int(dirty * bytes_per_token), tier)
    restore_s = costs.restore_s(int(context_tokens * bytes_per_token), tier)
    if prefill_s is None or save_s is None or restore_s is None:
        return None
    return BreakEven(
        context_tokens=context_tokens,
        prefill_s=prefill_s,
        save_s=save_s,
        restore_s=restore_s,
    )


def pays_from_tokens(
    costs: Costs,
    *,
    limit_tokens: int,
    bytes_per_token: float,
    tier: str | None = None,
) -> int | None:
    """Return the context from which on parking pays, up to *limit_tokens*.

    None where it does not pay at the limit, or where that is not known. A prefill grows
    with the square of the context, copies in proportion to it, so what parking gains is
    convex: it pays at the limit and from the last zero before it.
    """

    def gain_s(tokens: int) -> float:
        at = break_even(
            costs, context_tokens=tokens, bytes_per_token=bytes_per_token, tier=tier
        )
        return 0.0 if at is None else at.prefill_s - at.moving_s

    if limit_tokens < 1 or gain_s(limit_tokens) <= 0:
        return None
    lowest = _lowest(gain_s, limit_tokens)
    if gain_s(lowest) > 0:
        return 1
    pays_not, pays = lowest, limit_tokens
    while pays - pays_not > 1:
        middle = (pays_not + pays) // 2
        if gain_s(middle) > 0:
            pays = middle
        else:
            pays_not = middle
    return pays


def _lowest(convex: Callable[[int], float], limit: int) -> int:
    """Return where a convex function of 1 to *limit* is lowest."""
    low, high = 1, limit
    while low < high:
        middle = (low + high) // 2
        if convex(middle) <= convex(middle + 1):
            high = middle
        else:
            low = middle + 1
    return low
