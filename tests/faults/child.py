"""A conversation in a process of its own: python -m tests.faults.child ...

It prints what was said, how many states were restored, and why others weren't.
"""

import asyncio
import json
import random
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import Final

from kvalet import DiskStore, LlamaBackend, Runtime
from kvalet.scheduler import Copied, CopyFailed, Restored, RestoreFailed
from kvalet.state_store import Inventory
from kvalet.state_store.redis import RedisStore

from .stage import Watch, converse

TTL_S: Final = 2.0
LEASE_S: Final = 0.3


async def talk(store: Inventory, model: str, sessions: list[str]) -> None:
    """Converse as one session after another, and print how it was."""
    watch, said = Watch(), list[object]()
    async with (
        aclosing(store),
        aclosing(
            await LlamaBackend.start(
                model_path=Path(model), slots=1, context_tokens=2048
            )
        ) as backend,
    ):
        async with Runtime(
            backend, store=store, policy="park", observers=[watch.hear]
        ) as runtime:
            print("ready", flush=True)
            for session in sessions:
                said.append(await converse(runtime, session))
        stat = await store.stat()
    reasons = [*watch.reasons(CopyFailed), *watch.reasons(RestoreFailed)]
    result = {
        "said": said,
        "moved": [watch.count(Copied), watch.count(Restored)],
        "reasons": sorted(set(reasons)),
        "left_bytes": stat.stored_bytes,
    }
    print(json.dumps(result))


async def talk_through_redis(url: str, model: str, sessions: list[str]) -> None:
    """Park in a server."""
    store = await RedisStore.open(url, ttl_s=TTL_S, lease_s=LEASE_S)
    await talk(store, model, sessions)


async def talk_through_disk(folder: str, model: str, sessions: list[str]) -> None:
    """Park in a folder."""
    await talk(await DiskStore.open(Path(folder)), model, sessions)


def let_the_clock_jump() -> None:
    """Have the time of day be anything from now on, at each look another one."""
    chance = random.Random(0)

    def jump() -> float:
        return chance.uniform(0, 4e9)

    time.time = jump
    time.time_ns = lambda: int(jump() * 1e9)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["redis", url, model, *sessions]:
            asyncio.run(talk_through_redis(url, model, sessions))
        case ["jumping clock", url, model, *sessions]:
            let_the_clock_jump()
            asyncio.run(talk_through_redis(url, model, sessions))
        case ["disk", folder, model, *sessions]:
            asyncio.run(talk_through_disk(folder, model, sessions))
        case _:
            sys.exit(2)
