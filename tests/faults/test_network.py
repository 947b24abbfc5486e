"""The network to Redis is cut, hangs, crawls and flips bits, at any stage of a move.

After each: the tokens are those of an undisturbed run, no turn is lost or waits for
long, parking and restoring work again by themselves, and nothing is left.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial

import pytest

from kvalet import LlamaBackend, Runtime
from kvalet.scheduler import (
    Copied,
    CopyFailed,
    CopyStarted,
    Restored,
    RestoreFailed,
    RestoreStarted,
)
from kvalet.state_store.redis import RedisStore

from ..servers import any_program, serve
from .proxy import Proxy, Way, proxy_to
from .stage import (
    HEALED_S,
    MOST_WAIT_S,
    Move,
    Moved,
    Tokens,
    Watch,
    converse,
    nothing_left,
    until_moving,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


Strike = Callable[[Proxy, int, Way], None]


def cut(proxy: Proxy, nbytes: int, way: Way) -> None:
    """Close all connections after so many bytes."""
    proxy.after(nbytes, way, proxy.cut)


def vanish(proxy: Proxy, nbytes: int, way: Way) -> None:
    """Be gone after so many bytes."""
    proxy.after(nbytes, way, proxy.vanish)


def hang(proxy: Proxy, nbytes: int, way: Way) -> None:
    """Forward nothing after so many bytes."""
    proxy.after(nbytes, way, proxy.hang)


def crawl(proxy: Proxy, nbytes: int, way: Way) -> None:
    """Forward 50 kB/s after so many bytes."""
    proxy.after(nbytes, way, lambda: proxy.slow(50_000))


def flip(proxy: Proxy, nbytes: int, way: Way) -> None:
    """Flip a bit after so many bytes."""
    proxy.flip(nbytes, way)


# Of the bytes of a move. At the end of a park, the manifest is committed.
MANY = (0.0, 0.002, 0.5, 0.995, 1.0)
FEW = (0.0, 0.5)
STRIKES: dict[Strike, tuple[float, ...]] = {
    cut: MANY,
    flip: MANY,
    vanish: FEW,
    hang: FEW,
    crawl: FEW[:1],
}

WAYS: dict[type[Move], tuple[Way, type[Moved]]] = {
    CopyStarted: (Way.TO_SERVER, Copied),
    RestoreStarted: (Way.TO_CLIENT, Restored),
}


@pytest.mark.parametrize("strike", STRIKES)
@pytest.mark.parametrize("move", WAYS)
async def test_the_network_fails_at_any_stage(
    backend: LlamaBackend, expected: list[Tokens], move: type[Move], strike: Strike
) -> None:
    """A part of a state has passed when it happens: none of it, some, nearly all."""
    way, end = WAYS[move]
    watch = Watch()
    async with AsyncExitStack() as stack:
        server = stack.enter_context(serve(any_program()))
        proxy = await stack.enter_async_context(proxy_to(server.port))
        await stack.enter_async_context(nothing_left(server))
        opened = await RedisStore.open(proxy.url, ttl_s=2, lease_s=2)
        store = await stack.enter_async_context(aclosing(opened))
        async with Runtime(
            backend, store=store, policy="park", observers=[watch.hear]
        ) as runtime:
            passed_bytes: list[int] = []

            def measure() -> None:
                passed_bytes.append(proxy.passed_bytes[way])
                watch.at(end, "peace", measure)

            watch.at(move, "peace", measure)
            assert await converse(runtime, "peace") == expected
            whole_bytes = passed_bytes[1] - passed_bytes[0]
            for part in STRIKES[strike]:
                nbytes = min(round(part * whole_bytes), whole_bytes - 1)
                name = f"struck after {nbytes} bytes"
                watch.at(move, name, partial(strike, proxy, nbytes, way))
                assert await converse(runtime, name) == expected
                assert watch.struck
                proxy.mend()
                assert await until_moving(runtime, watch) < HEALED_S
            runtime.scheduler.check_integrity()
        stat = await store.stat()
        assert stat.states == stat.stored_bytes == 0
        failures = watch.count(CopyFailed) + watch.count(RestoreFailed)
        assert failures >= len(STRIKES[strike]) // 2
        assert max(watch.waits_s) < MOST_WAIT_S
