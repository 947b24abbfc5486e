"""A network that misbehaves on command: a relay on loopback in front of a server.

It forwards bytes both ways, a piece at a time, and does what it is told: close all
connections and take no new ones, forward nothing, forward slowly, flip a bit, or call
something when so many bytes have passed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

_PIECE_BYTES: Final = 16 * 1024
_MOST_CONNECTIONS: Final = 64


class Way(Enum):
    """In which direction bytes go."""

    TO_SERVER = auto()
    TO_CLIENT = auto()


@dataclass(slots=True)
class _Mark:
    """What is to happen once *left_bytes* more have passed."""

    way: Way
    left_bytes: int
    act: Callable[[], object] | None
    flips: bool = False


class Proxy:
    """Relays to a port of loopback; ``passed_bytes`` counts what went either way."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._mark: _Mark | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_gone = False
        self._bytes_per_s: float | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.passed_bytes = dict.fromkeys(Way, 0)

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return f"redis://127.0.0.1:{port}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._tasks)

    # ---- commands --------------------------------------------------------------------

    def mend(self) -> None:
        """Be a good network again, and forget what was still to happen."""
        self._is_gone, self._bytes_per_s, self._mark = False, None, None
        self._flows.set()

    def cut(self) -> None:
        """Close all connections; new ones are welcome."""
        for writer in self._writers:
            writer.transport.abort()

    def vanish(self) -> None:
        """Close all connections, and whatever is opened, until it is mended."""
        self._is_gone = True
        self.cut()

    def hang(self) -> None:
        """Leave connections open, take new ones, and forward nothing."""
        self._flows.clear()

    def slow(self, bytes_per_s: float) -> None:
        """Forward no more than that, each way on each connection."""
        self._bytes_per_s = bytes_per_s

    def after(self, nbytes: int, way: Way, act: Callable[[], object]) -> None:
        """Call *act* once, when *nbytes* more have been forwarded that way."""
        self._mark = _Mark(way, nbytes, act)

    def flip(self, nbytes: int, way: Way) -> None:
        """Change one bit, of the byte that comes after *nbytes* more that way."""
        self._mark = _Mark(way, nbytes, None, flips=True)

    # ---- at work ---------------------------------------------------------------------

    async def open(self) -> None:
        """Listen."""
        self._listener = await asyncio.start_server(self._meet, "127.0.0.1", 0)

    async def aclose(self) -> None:
        """Close everything."""
        assert self._listener is not None
        self._listener.close()
        self.vanish()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._listener.wait_closed()

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_gone or len(self._tasks) >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._writers.add(writer)
        try:
            there = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            self._end(writer)
            return
        self._writers.add(there[1])
        pumps = [
            asyncio.create_task(self._pump(Way.TO_SERVER, reader, there[1])),
            asyncio.create_task(self._pump(Way.TO_CLIENT, there[0], writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._end(writer)
            self._end(there[1])

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()

    async def _pump(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                while data:
                    await self._flows.wait()
                    data = await self._forward(way, data, writer)

    async def _forward(
        self, way: Way, data: bytes, writer: asyncio.StreamWriter
    ) -> bytes:
        """Forward *data* up to where something is to happen; return the rest."""
        mark = self._mark
        if mark is None or mark.way is not way or len(data) < mark.left_bytes:
            await self._send(way, data, writer)
            return b""
        head, rest = data[: mark.left_bytes], data[mark.left_bytes :]
        if mark.flips and not rest:
            await self._send(way, data, writer)
            return b""
        self._mark = None
        await self._send(way, head, writer, counts=False)
        if mark.flips:
            return bytes([rest[0] ^ 1]) + rest[1:]
        if mark.act is not None:
            mark.act()
        return rest

    async def _send(
        self,
        way: Way,
        data: bytes,
        writer: asyncio.StreamWriter,
        *,
        counts: bool = True,
    ) -> None:
        self.passed_bytes[way] += len(data)
        if counts and self._mark is not None and self._mark.way is way:
            self._mark.left_bytes -= len(data)
        if self._bytes_per_s is not None:
            await asyncio.sleep(len(data) / self._bytes_per_s)
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def proxy_to(server_port: int) -> AsyncGenerator[Proxy, None]:
    """Relay to a server of this machine."""
    proxy = Proxy(server_port)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.aclose()
