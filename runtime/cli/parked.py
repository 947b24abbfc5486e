"""Looks at parked state from outside of the process that parked it.

Tiers are looked at one by one, so that each says what it has; a memory tier is gone
with its process and left out. No session is taken from its owner.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

from ...state_store import (
    Inventory,
    KVState,
    Manifest,
    StateCorrupt,
    StateMissing,
    tenant_of,
)
from ...state_store.open import open_tier, read_sealer
from ...state_store.setting import MemoryTier, read_setting
from ..errors import WrongInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A state that a tier has."""

    tier: str
    store: Inventory
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A state, and what is wrong with it: empty if it is what was parked."""

    parked: Parked
    reason: str
    removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """Open stores by name, the fastest first; ``key_id`` is empty without keys."""

    stores: Sequence[tuple[str, Inventory]]
    key_id: str


@asynccontextmanager
async def opened_tiers(
    text: str, say: Callable[[str], None]
) -> AsyncGenerator[Tiers, None]:
    """Open what of *text* can be looked at, and close it; StoreUnusable, WrongInput."""
    tiers = [t for t in read_setting(text).tiers if not isinstance(t, MemoryTier)]
    if not tiers:
        raise WrongInput(
            "a memory store is gone with its process, and only that can look into it; "
            "name a disk:PATH or a Redis URL"
        )
    sealer = read_sealer(os.environ)
    async with AsyncExitStack() as stack:
        stores: list[tuple[str, Inventory]] = []
        for tier in tiers:
            store = await open_tier(tier, sealer=sealer, say=say, looking=True)
            await stack.enter_async_context(aclosing(store))
            stores.append(((await store.stat()).tier, store))
        yield Tiers(stores=stores, key_id=sealer.key_id)


async def parked_states(
    tiers: Tiers, tenant: str | None
) -> AsyncIterator[Parked | StateCorrupt]:
    """Yield what is parked, of *tenant* or of all, and why some can't be read."""
    for tier, store in tiers.stores:
        async for key in store.keys():
            if tenant is not None and tenant_of(key) != tenant:
                continue
            try:
                manifest = await store.find(key)
            except StateMissing:
                continue  # it has left meanwhile
            except StateCorrupt as error:
                yield error
                continue
            yield Parked(tier=tier, store=store, manifest=manifest)


async def find_states(tiers: Tiers, key: str) -> list[Parked]:
    """Return the state from every tier that has it; WrongInput if none has."""
    found: list[Parked] = []
    for tier, store in tiers.stores:
        try:
            manifest = await store.find(key)
        except StateMissing:
            continue
        found.append(Parked(tier=tier, store=store, manifest=manifest))
    if not found:
        raise nothing_under([key])
    return found


async def judge(parked: Parked) -> Verdict:
    """Fetch a state and verify it."""
    reason, removed = "", False
    key = parked.manifest.key
    try:
        await parked.store.fetch(key)
    except (StateCorrupt, StateMissing) as error:
        reason = str(error)
        try:
            await parked.store.find(key)
        except (StateCorrupt, StateMissing):
            removed = True
    return Verdict(parked=parked, reason=reason, removed=removed)


async def fetch_state(tiers: Tiers, key: str) -> KVState:
    """Return the state from the first tier that has it whole; else why it has not."""
    error: StateCorrupt | StateMissing | None = None
    for parked in await find_states(tiers, key):
        try:
            state, _ = await parked.store.fetch(key)
        except (StateCorrupt, StateMissing) as failure:
            error = error or failure
            continue
        return state
    raise error or nothing_under([key])


async def drop_state(tiers: Tiers, key: str) -> bool:
    """Drop the key in every tier; return whether one had it; raise StateLeased."""
    found = False
    for _, store in tiers.stores:
        try:
            await store.find(key)
        except StateMissing:
            continue
        except StateCorrupt:
            pass  # it is there, whatever it is
        await store.drop(key)
        found = True
    return found


def nothing_under(keys: Sequence[str]) -> WrongInput:
    """Return the error that says which keys hold nothing, and where to look."""
    names = ", ".join(map(repr, keys))
    return WrongInput(
        f"nothing is parked under {names}; kvalet sessions list --json shows every key"
    )
