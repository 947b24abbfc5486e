"""Our own connections to servers: plain HTTP/1.1, as many at once as there are calls.

httpx's pool is scanned for every request and collapses at 200 streams; here a request
costs the same however many others there are. How many that may be is not decided here.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from .connection import Connection
from .errors import ConnectFailed, ConnectionBroken, WrongAddress
from .message import Headers, Origin, Outgoing

# llama-server closes a connection that has been idle for 5 s.
_IDLE_AT_MOST_S = 4.0
_CONNECT_WITHIN_S = 10.0


class Connections:
    """Sends requests over connections of its own (``Carrier``).

    Needs ``pip install 'kvalet[http]'``. A server may close an idle connection in the
    moment in which a request is sent on it. Such a request, of whatever method, is
    sent once more on a new connection if not one byte of an answer had come.
    """

    def __init__(self, *, idle_at_most_s: float = _IDLE_AT_MOST_S) -> None:
        self._idle: dict[Origin, deque[Connection]] = {}
        self._open: set[Connection] = set()
        self._idle_at_most_s = idle_at_most_s
        self._closed = False

    async def send(
        self, origin: Origin, outgoing: Outgoing, *, silence_s: float | None = None
    ) -> "ConnectionAnswer":
        """Return the answer as soon as its head is there. See ``Carrier``."""
        if origin.scheme != "http":
            raise WrongAddress(
                f"{origin.scheme}://{origin.authority} can't be reached by plain HTTP"
            )
        message = _message(origin, outgoing)
        connection = self._reused(origin)
        if connection is not None:
            try:
                await self._ask(connection, outgoing, message, silence_s)
            except ConnectionBroken:
                if connection.answered:
                    raise
            else:
                return ConnectionAnswer(self, origin, connection, silence_s)
        connection = await self._connect(origin)
        await self._ask(connection, outgoing, message, silence_s)
        return ConnectionAnswer(self, origin, connection, silence_s)

    async def aclose(self) -> None:
        """Close all connections; answers still being read break off."""
        self._closed = True
        self._idle.clear()
        for connection in self._open:
            connection.abort()
        self._open.clear()

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Keep a connection for the next request if it can carry one, else cut it."""
        if self._closed or not connection.reusable:
            self._cut(connection)
            return
        now_s = asyncio.get_running_loop().time()
        connection.idle_since_s = now_s
        idle = self._idle.setdefault(origin, deque())
        idle.append(connection)
        # Those in front have waited longest.
        while idle[0].closed or self._expired(idle[0], now_s):
            self._cut(idle.popleft())

    def _reused(self, origin: Origin) -> Connection | None:
        """Return the connection that was used last and is still good, if any."""
        idle = self._idle.get(origin)
        now_s = asyncio.get_running_loop().time()
        while idle:
            connection = idle.pop()
            if not connection.closed and not self._expired(connection, now_s):
                return connection
            self._cut(connection)
        return None

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ConnectFailed("the connections are closed")
        where = origin.authority
        try:
            async with asyncio.timeout(_CONNECT_WITHIN_S):
                _, connection = await loop.create_connection(
                    Connection, origin.host, origin.port
                )
        except TimeoutError:
            raise ConnectFailed(
                f"no connection to {where} within {_CONNECT_WITHIN_S:g} s"
            ) from None
        except OSError as error:
            raise ConnectFailed(f"no connection to {where}: {error}") from error
        self._open.add(connection)
        return connection

    async def _ask(
        self,
        connection: Connection,
        outgoing: Outgoing,
        message: bytes,
        silence_s: float | None,
    ) -> None:
        try:
            connection.begin(outgoing.method, message)
            await connection.head(silence_s)
        except BaseException:
            self._cut(connection)
            raise

    def _expired(self, connection: Connection, now_s: float) -> bool:
        return now_s - connection.idle_since_s > self._idle_at_most_s

    def _cut(self, connection: Connection) -> None:
        connection.abort()
        self._open.discard(connection)


class ConnectionAnswer:
    """An answer on one of our connections (``Answer``)."""

    def __init__(
        self,
        connections: Connections,
        origin: Origin,
        connection: Connection,
        silence_s: float | None,
    ) -> None:
        self.status = connection.status
        self.headers: Headers = tuple(connection.headers)
        self._connections = connections
        self._origin = origin
        self._connection: Connection | None = connection
        self._silence_s = silence_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body, in pieces as they come."""
        while self._connection is not None:
            piece = await self._connection.piece(self._silence_s)
            if not piece:
                return
            yield piece

    async def aclose(self) -> None:
        """Let go of the connection: back to the pool if all was read, else cut."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.give_back(self._origin, connection)


def _message(origin: Origin, outgoing: Outgoing) -> bytes:
    """Return a request as it goes over the wire."""
    method = outgoing.method.encode()
    target = outgoing.target.encode()
    lines = [b"%b %b HTTP/1.1" % (method, target)]
    lines.append(b"host: " + origin.authority.encode())
    lines += [b"%b: %b" % header for header in outgoing.headers]
    if outgoing.body or outgoing.method not in ("GET", "HEAD", "DELETE", "OPTIONS"):
        lines.append(b"content-length: %d" % len(outgoing.body))
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or b"\0" in head:
        raise WrongAddress(
            f"the head of a request to {origin.authority} has a line break in one of "
            f"its values"
        )
    return head + b"\r\n\r\n" + outgoing.body
