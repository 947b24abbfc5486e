"""Commands to a server, to the master behind Sentinel, or to a cluster: redis-py.

Its own retries are turned down to one, for a connection that was closed while idle:
left alone they block a call for 20 s. Every call has a deadline around it besides.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import redis.asyncio as client
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Disconnected

from .address import Address, Shape
from .lane import Endpoint
from .lanes import Where

Word = str | bytes | int
Call = tuple[Sequence[str], Sequence[Word]]
"""Keys and arguments of a script."""

_PAGE: Final = 128
_SCAN_COUNT: Final = 500


class Server:
    """Sends commands; raises whatever is in ``faults.Failure``."""

    def __init__(
        self, address: Address, *, timeout_s: float, connections: int = 4
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._gate = asyncio.Semaphore(connections)
        self._sentinel: Sentinel | None = None
        self._master: Where | None = None
        self._client: Any = self._connect()

    def endpoint(self) -> Endpoint:
        """Return what a connection for chunks needs to know, save where it leads."""
        address = self._address
        return Endpoint(
            where=address.path or address.hosts[0],
            username=address.username,
            password=address.password,
            db=address.db,
            context=None if address.tls is None else address.tls.context(),
            timeout_s=self._timeout_s,
        )

    async def where(self, keys: Sequence[str]) -> list[Where]:
        """Return which server has each of *keys*."""
        match self._address.shape:
            case Shape.SOCKET:
                return [self._address.path] * len(keys)
            case Shape.SERVER:
                return [self._address.hosts[0]] * len(keys)
            case Shape.SENTINEL:
                return [await self._find_master()] * len(keys)
            case Shape.CLUSTER:
                async with asyncio.timeout(self._timeout_s):
                    await self._client.initialize()
                nodes = map(self._client.get_node_from_key, keys)
                return [(node.host, node.port) for node in nodes]

    async def run(self, script: str, keys: Sequence[str], *arguments: Word) -> Any:
        """Run a script and return its answer."""
        async with self._gate, asyncio.timeout(self._timeout_s):
            return await self._client.execute_command(
                "EVAL", script, len(keys), *keys, *arguments
            )

    async def run_each(self, script: str, calls: Sequence[Call]) -> list[Any]:
        """Run a script with each of *calls*, not atomically together."""
        answers: list[Any] = []
        for start in range(0, len(calls), _PAGE):
            page = calls[start : start + _PAGE]
            if self._address.shape is Shape.CLUSTER:
                # A pipeline of redis-py's does not take scripts to a cluster.
                answers += await asyncio.gather(
                    *(self.run(script, keys, *words) for keys, words in page)
                )
                continue
            async with self._gate, asyncio.timeout(self._timeout_s):
                pipeline: Any = self._client.pipeline(transaction=False)
                for keys, words in page:
                    pipeline.execute_command("EVAL", script, len(keys), *keys, *words)
                answers += await pipeline.execute()
        return answers

    async def ask(self, *words: Word) -> Any:
        """Send one command."""
        async with self._gate, asyncio.timeout(self._timeout_s):
            return await self._client.execute_command(*words)

    async def ping(self) -> None:
        """Have every server that takes writes answer."""
        options: dict[str, Any] = {}
        if self._address.shape is Shape.CLUSTER:
            options = {"target_nodes": RedisCluster.PRIMARIES}
        async with self._gate, asyncio.timeout(self._timeout_s):
            await self._client.execute_command("PING", **options)

    async def scan(self, pattern: str) -> AsyncGenerator[str]:
        """Yield the keys that match, of all servers; some maybe twice."""
        keys = self._client.scan_iter(match=pattern, count=_SCAN_COUNT)
        while True:
            try:
                async with self._gate, asyncio.timeout(self._timeout_s):
                    key: bytes = await anext(keys)
            except StopAsyncIteration:
                return
            yield key.decode()

    async def forget(self) -> None:
        """Drop all connections: the server may be another one now."""
        self._master = None
        if self._address.shape is not Shape.CLUSTER:
            await self._client.connection_pool.disconnect()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()
        if self._sentinel is not None:
            for sentinel in self._sentinel.sentinels:
                await sentinel.aclose()

    def _connect(self) -> Any:
        address, options = self._address, self._options()
        login: dict[str, Any] = {
            "username": address.username,
            "password": address.password,
        }
        match address.shape:
            case Shape.SERVER:
                host, port = address.hosts[0]
                return client.Redis(
                    host=host, port=port, db=address.db, **login, **options
                )
            case Shape.SOCKET:
                return client.Redis(
                    unix_socket_path=address.path, db=address.db, **login, **options
                )
            case Shape.SENTINEL:
                sentinel_login = {"password": address.sentinel_password}
                make_sentinel: Any = Sentinel  # redis-py does not say its types
                self._sentinel = sentinel = make_sentinel(
                    list(address.hosts), sentinel_kwargs=sentinel_login | options
                )
                return sentinel.master_for(
                    address.service, db=address.db, **login, **options
                )
            case Shape.CLUSTER:
                nodes = [ClusterNode(host, port) for host, port in address.hosts]
                return RedisCluster(startup_nodes=nodes, **login, **options)

    def _options(self) -> dict[str, Any]:
        # No socket_timeout: it has redis-py use wait_for, which in Python 3.11 swallows
        # a cancellation now and then. The deadline around every call does instead.
        options: dict[str, Any] = {
            "socket_timeout": None,
            "socket_connect_timeout": self._timeout_s,
            "retry": Retry(NoBackoff(), 1, supported_errors=(Disconnected,)),
            "retry_on_error": [Disconnected],
            "protocol": 2,
        }
        if (tls := self._address.tls) is not None:
            options |= {
                "ssl": True,
                "ssl_cert_reqs": "required",
                "ssl_ca_certs": tls.ca_certs,
                "ssl_certfile": tls.certfile,
                "ssl_keyfile": tls.keyfile,
                "ssl_check_hostname": tls.check_hostname,
            }
        return options

    async def _find_master(self) -> Where:
        if self._master is None:
            assert self._sentinel is not None
            async with asyncio.timeout(self._timeout_s):
                self._master = await self._sentinel.discover_master(
                    self._address.service
                )
        return self._master
