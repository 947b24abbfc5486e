"""Whether a store can hold what the accelerator would send there."""

from ..backends import Capabilities
from ..state_store import Inventory, StoreStat


async def budget_note(store: Inventory, can: Capabilities) -> str | None:
    """Return a sentence if no tier of *store* has room for one full session."""
    stat = await store.stat()
    session_bytes = can.context_tokens * can.bytes_per_token
    budgets = [tier.budget_bytes for tier in _tiers(stat)]
    if any(budget is None or budget >= session_bytes for budget in budgets):
        return None
    largest = max(budget for budget in budgets if budget is not None)
    return (
        f"the store takes {largest / 1e6:,.1f} MB and a full session of "
        f"{can.context_tokens:,} tokens has {session_bytes / 1e6:,.1f} MB: long "
        "sessions will not be parked but computed again"
    )


def _tiers(stat: StoreStat) -> tuple[StoreStat, ...]:
    return stat.tiers or (stat,)
