"""Several owners of one session, and clocks that jump: leases go by the server's."""

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from kvalet import LlamaBackend, Runtime
from kvalet.state_store.redis import RedisStore

from ..servers import any_program, serve
from .child import LEASE_S, TTL_S
from .children import Child, as_json
from .stage import Tokens, converse, nothing_left

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 3
# On a crowded machine that is right now and then.
TOO_SLOW = "the store took longer than computing the state would"


async def test_owners_of_one_session_race(
    backend: LlamaBackend, expected: list[Tokens], tiny_gguf: Path
) -> None:
    """Two runtimes here and one in another process: each says what it should."""
    with serve(any_program()) as server:
        async with AsyncExitStack() as stack:
            child = await Child.start(
                "redis", server.url, str(tiny_gguf), *"a" * ROUNDS
            )
            await stack.enter_async_context(nothing_left(server))
            other = await LlamaBackend.start(
                model_path=tiny_gguf, slots=1, context_tokens=2048
            )
            await stack.enter_async_context(aclosing(other))
            stores: list[RedisStore] = []

            async def race(engine: LlamaBackend) -> list[list[Tokens]]:
                opened = await RedisStore.open(server.url, ttl_s=TTL_S, lease_s=LEASE_S)
                stores.append(await stack.enter_async_context(aclosing(opened)))
                async with Runtime(engine, store=opened, policy="park") as runtime:
                    return [await converse(runtime, "a") for _ in range(ROUNDS)]

            for said in await asyncio.gather(race(backend), race(other)):
                assert said == [expected] * ROUNDS
            result = await child.result()
            assert result["said"] == as_json([expected] * ROUNDS)
            refused = [
                (await store.stat()).refused.get("leased", 0) for store in stores
            ]
            assert sum(refused) + str(result["reasons"]).count("is owned by") > 0
            for store in stores:
                assert (await store.stat()).stored_bytes == 0


async def test_a_clock_that_jumps_changes_nothing(
    expected: list[Tokens], tiny_gguf: Path
) -> None:
    """No lease, state or deadline depends on this machine's time of day."""
    with serve(any_program()) as server:
        async with nothing_left(server):
            child = await Child.start(
                "jumping clock", server.url, str(tiny_gguf), *"abcde"
            )
            result = await child.result()
        assert result["said"] == as_json([expected] * 5)
        assert set(result["reasons"]) <= {TOO_SLOW}
        assert min(result["moved"]) > 0
        assert result["left_bytes"] == 0
