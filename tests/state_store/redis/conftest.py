"""A server of each kind that is installed, and stores in it that differ in who owns."""

from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack
from typing import Protocol

import pytest
import pytest_asyncio

from kvalet.state_store.redis import RedisStore
from tests.servers import Server, program_named, serve


class OpenStore(Protocol):
    """Opens a store in the server of the test; it is closed afterwards."""

    async def __call__(
        self,
        owner_id: str = "one",
        *,
        url: str | None = None,
        ttl_s: float = 600,
        lease_s: float = 60,
        command_timeout_s: float = 5,
        leases: bool = True,
    ) -> RedisStore: ...


@pytest.fixture(scope="package", params=["valkey", "redis"])
def running(request: pytest.FixtureRequest) -> Generator[Server]:
    """A server for many tests."""
    with serve(program_named(request.param)) as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    """The server, empty."""
    running.ask("FLUSHALL")
    return running


@pytest_asyncio.fixture
async def open_store(request: pytest.FixtureRequest) -> AsyncGenerator[OpenStore]:
    """Return what opens stores."""
    async with AsyncExitStack() as stack:

        async def open_one(
            owner_id: str = "one",
            *,
            url: str | None = None,
            ttl_s: float = 600,
            lease_s: float = 60,
            command_timeout_s: float = 5,
            leases: bool = True,
        ) -> RedisStore:
            store = await RedisStore.open(
                url or request.getfixturevalue("server").url,
                owner_id=owner_id,
                ttl_s=ttl_s,
                lease_s=lease_s,
                command_timeout_s=command_timeout_s,
                leases=leases,
            )
            stack.push_async_callback(store.aclose)
            return store

        yield open_one
