"""Opens the store that a user names, as ``setting`` reads it.

With keys in ``KVALET_STORE_KEYS`` (see ``aes_gcm``) what leaves the process is
encrypted. What only some stores need is imported when it is their turn.
"""

import contextlib
from collections.abc import Callable, Mapping

import anyio

from .aes_gcm import VARIABLE, AesGcmSealer, keys_from_environment
from .disk import DiskStore
from .errors import StateStoreError, StoreUnusable
from .memory import MemoryStore
from .sealing import PlainSealer, Sealer
from .setting import (
    REDIS_OPTIONS,
    DiskTier,
    MemoryTier,
    RedisTier,
    Tier,
    read_setting,
)
from .store import Inventory
from .tiered import TieredStore

Say = Callable[[str], None]
"""Takes a sentence that the user should read."""


async def open_store(
    text: str, *, environment: Mapping[str, str], say: Say | None = None
) -> Inventory:
    """Open what *text* names: ``memory:1GiB``, ``disk:PATH``, a Redis URL, or several.

    *say* gets what about its set-up is not as it should be, though it works. Raises
    StoreUnusable with one sentence; then nothing is left open.
    """
    setting = read_setting(text)
    sealer = read_sealer(environment)
    stores: list[Inventory] = []
    try:
        for tier in setting.tiers:
            stores.append(await open_tier(tier, sealer=sealer, say=say))
    except BaseException:
        with anyio.CancelScope(shield=True):
            for store in stores:
                with contextlib.suppress(StateStoreError):
                    await store.aclose()
        raise
    if len(stores) == 1:
        return stores[0]
    return TieredStore(stores, write_through=setting.write_through)


async def open_tier(
    tier: Tier, *, sealer: Sealer, say: Say | None = None, looking: bool = False
) -> Inventory:
    """Open one tier. *looking* is for who only wants to see what is there.

    Then no session is taken from its owner, and no folder made.
    """
    match tier:
        case MemoryTier():
            return MemoryStore(tier.budget_bytes, tier.tenant_budget_bytes)
        case DiskTier():
            return await _open_disk(tier, sealer, looking)
        case RedisTier():
            return await _open_redis(tier, sealer, say, looking)


def read_sealer(environment: Mapping[str, str]) -> Sealer:
    """Return what seals with the keys in *environment*, or does not; StoreUnusable."""
    text = environment.get(VARIABLE, "").strip()
    return AesGcmSealer(keys_from_environment(text)) if text else PlainSealer()


async def _open_disk(tier: DiskTier, sealer: Sealer, looking: bool) -> Inventory:
    if looking and not await anyio.Path(tier.folder).is_dir():
        raise StoreUnusable(f"there is no folder {str(tier.folder)!r}")
    return await DiskStore.open(
        tier.folder,
        budget_bytes=tier.budget_bytes,
        tenant_budget_bytes=tier.tenant_budget_bytes,
        sealer=sealer,
    )


async def _open_redis(
    tier: RedisTier, sealer: Sealer, say: Say | None, looking: bool
) -> Inventory:
    from .redis import RedisStore
    from .redis.address import OPTIONS

    _, _, query = tier.url.partition("?")
    for option in filter(None, query.split("&")):
        name = option.partition("=")[0]
        if name not in OPTIONS:
            valid = ", ".join((*REDIS_OPTIONS, *OPTIONS))
            raise StoreUnusable(
                f"a Redis store has no option {name!r}; valid are {valid}"
            )
    store = await RedisStore.open(
        tier.url, sealer=sealer, leases=not looking, **tier.options
    )
    if say is not None:
        for note in store.notes:
            say(note)
    return store
