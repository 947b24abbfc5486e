"""A store that is too small for the accelerator says so, in numbers."""

from kvalet.runtime.budget import budget_note
from kvalet.state_store import MemoryStore, TieredStore

from .backends import RoundBackend
from .world import virtual

# A full session has 1000 tokens of 10 bytes.
CAPABILITIES = RoundBackend().capabilities


@virtual
async def test_a_budget_below_one_session_is_said() -> None:
    """Both sizes are in the sentence."""
    note = await budget_note(MemoryStore(9_999), CAPABILITIES)
    assert note is not None
    assert "0.0 MB" in note and "1,000 tokens" in note


@virtual
async def test_room_for_one_session_is_enough() -> None:
    """So is a store without a budget, or one tier with room."""
    assert await budget_note(MemoryStore(10_000), CAPABILITIES) is None
    assert await budget_note(MemoryStore(None), CAPABILITIES) is None
    tiers = TieredStore([MemoryStore(1), MemoryStore(10_000)])
    assert await budget_note(tiers, CAPABILITIES) is None
    await tiers.aclose()
