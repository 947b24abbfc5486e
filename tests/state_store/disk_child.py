"""What another process does to a folder: python -m tests.state_store.disk_child ..."""

import asyncio
import random
import resource
import sys

from kvalet.state_store import DiskStore, KVState, StateMissing, StoreFull

from .states import make_rows

KEYS = ("t/a", "t/b", "u/a")
BUDGET_BYTES = 1024 * 1024


def text_of(version: int) -> list[int]:
    """Return the tokens of a version; every third one begins like those before it."""
    start = [token % 7 for token in range(3000)]
    return start + [version] * (500 + version % 700)


def state_of(key: str, version: int) -> KVState:
    """Return what is parked as a version: of these, no two fit all the budget."""
    return make_rows(key, text_of(version), unstored_bytes=200_000)


async def park_for_ever(folder: str, seed: int) -> None:
    """Park version after version, saying so before and after, until killed."""
    chance = random.Random(seed)
    store = await DiskStore.open(folder, budget_bytes=BUDGET_BYTES)
    version = seed * 10_000
    while True:
        version += 1
        key = chance.choice(KEYS)
        if chance.random() < 0.2:
            print("drop", key, 0, flush=True)
            await store.drop(key)
            print("dropped", key, 0, flush=True)
            continue
        print("park", key, version, flush=True)
        receipt = await store.park(state_of(key, version))
        for victim in receipt.evicted:
            print("dropped", victim, 0, flush=True)
        print("parked", key, version, flush=True)


async def fill(folder: str) -> None:
    """Park until the disk is full, then show that nothing else is the matter."""
    store = await DiskStore.open(folder)
    small = make_rows("small", [1] * 200)
    await store.park(small)
    large = make_rows("large", list(range(100_000)))
    try:
        await store.park(large)
    except StoreFull as error:
        print(error)
    try:
        await store.find("large")
    except StateMissing:
        print("large is missing")
    assert (await store.fetch("small"))[0] == small
    await store.drop("small")
    await store.park(small)
    print(dict((await store.stat()).refused), (await store.stat()).states)
    await store.aclose()


async def fill_up_to_a_file_size(folder: str) -> None:
    """The same where no file may have more than 7,000 bytes, as manifests have."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (7_000, 7_000))
    await fill(folder)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["park", path, number]:
            asyncio.run(park_for_ever(path, int(number)))
        case ["fill", path]:
            asyncio.run(fill(path))
        case ["fill_up_to_a_file_size", path]:
            asyncio.run(fill_up_to_a_file_size(path))
        case _:
            sys.exit(2)
