"""A primary dies and its replica takes over, in the middle of a conversation."""

from contextlib import aclosing
from time import monotonic

import pytest

from kvalet import LlamaBackend, Runtime
from kvalet.scheduler import CopyFailed, CopyStarted, RestoreFailed, RestoreStarted
from kvalet.state_store.redis import RedisStore

from ..servers import any_program, serve_sentinels
from .stage import (
    MOST_WAIT_S,
    Move,
    Tokens,
    Watch,
    converse,
    nothing_left,
    until_moving,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest.mark.parametrize("move", [CopyStarted, RestoreStarted])
async def test_a_fail_over_costs_prefills_alone(
    backend: LlamaBackend, expected: list[Tokens], move: type[Move]
) -> None:
    """Killed when a move begins: the turns go on, and then the replica is used."""
    with serve_sentinels(any_program()) as servers:
        watch = Watch()
        async with nothing_left(servers.replica):
            opened = await RedisStore.open(servers.url, ttl_s=2, lease_s=2)
            async with (
                aclosing(opened) as store,
                Runtime(
                    backend, store=store, policy="park", observers=[watch.hear]
                ) as runtime,
            ):
                assert await converse(runtime, "before") == expected
                watch.at(move, "a", servers.primary.kill)
                assert await converse(runtime, "a") == expected
                assert watch.struck
                began_s = monotonic()
                await until_moving(runtime, watch, limit_s=30)
                print(f"failed over within {monotonic() - began_s:.1f} s")
                runtime.scheduler.check_integrity()
            assert watch.count(CopyFailed) + watch.count(RestoreFailed) >= 1
            stat = await store.stat()
            assert stat.states == stat.stored_bytes == 0
        assert max(watch.waits_s) < MOST_WAIT_S
