"""One connection to a server: a request goes out, the answer comes in as it is read.

The parser is httptools'; what is here is when to read on, and when an answer is over.
A reader that does not keep up stops the peer: beyond a bound nothing more is read.
"""

import asyncio
from collections import deque

import httptools

from .errors import ConnectionBroken, PeerSilent

_HELD_AT_MOST_BYTES = 256 << 10
_NO_BODY = frozenset((204, 304))


class Connection(asyncio.Protocol):
    """Carries one exchange at a time; ``reusable`` says whether another may follow."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.answered = False  # any byte of an answer has come
        self.idle_since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._pieces: deque[bytes] = deque()
        self._held_bytes = 0
        self._waiting: asyncio.Future[None] | None = None
        self._head_only = False
        self._framed = False  # the head says where the body ends
        self._interim = False
        self._head_done = self._done = False
        self._reading = True
        self._lasting = False  # the peer keeps the connection after this answer
        self._spoiled = False  # more came than was asked for
        self._closed = False
        self._fault = ""

    # ---- an exchange -----------------------------------------------------------------

    def begin(self, method: str, message: bytes) -> None:
        """Send *message*, a whole request of this *method*."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._head_only = method == "HEAD"
        self._head_done = self._done = self._framed = self._lasting = False
        self.answered = False
        self.status, self.headers = 0, []
        self._transport.write(message)

    async def head(self, silence_s: float | None) -> None:
        """Return when status and headers are there.

        Raises ConnectionBroken or PeerSilent.
        """
        while not self._head_done:
            self._check_open()
            await self._heard(silence_s)

    async def piece(self, silence_s: float | None) -> bytes:
        """Return what has come of the body; empty at its end.

        Raises ConnectionBroken or PeerSilent.
        """
        while not self._pieces:
            if self._done:
                return b""
            self._check_open()
            await self._heard(silence_s)
        pieces = self._pieces
        piece = pieces.popleft() if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._held_bytes = 0
        if not self._reading and not self._closed and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()
        return piece

    @property
    def reusable(self) -> bool:
        """Whether the answer has been read to its end, and the connection is open."""
        read = self._done and not self._held_bytes
        return read and self._lasting and not self._spoiled and not self._closed

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._closed

    def abort(self) -> None:
        """Cut it at once, so that the peer notices."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def _check_open(self) -> None:
        if self._closed:
            where = "within its answer" if self.answered else "before it answered"
            why = f": {self._fault}" if self._fault else ""
            raise ConnectionBroken(f"the server closed the connection {where}{why}")

    async def _heard(self, silence_s: float | None) -> None:
        """Return when anything has come, or the connection is gone."""
        self._waiting = waiting = self._loop.create_future()
        timer = None
        if silence_s is not None:
            silent = PeerSilent(f"the server has said nothing for {silence_s:g} s")
            timer = self._loop.call_later(silence_s, _fail, waiting, silent)
        try:
            await waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # ---- what asyncio calls ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note of the way to the peer."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take in what the peer says."""
        if self._parser is None or self._done:
            self.abort()  # nobody has asked
            return
        self.answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # What follows a whole answer spoils the connection, not the answer.
            self._fault = f"it said what is not HTTP ({error})"
            self.abort()
        if self._held_bytes > _HELD_AT_MOST_BYTES and self._reading:
            self._reading = False
            if self._transport is not None and not self._closed:
                self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Let the end of the connection end a body that has no other end."""
        if self._head_done and not self._framed and not self._done:
            self._done = True
        self._closed = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits that nothing more will come."""
        self._closed = True
        if exc is not None and not self._fault:
            self._fault = str(exc)
        self._wake()

    # ---- what the parser calls -------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        if self._done:
            return
        name = name.lower()
        self._framed |= name in (b"content-length", b"transfer-encoding")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is there, unless it is an interim one, as 100 Continue is."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim or self._done:
            return
        self.status = status
        self._lasting = self._parser.should_keep_alive()
        self._head_done = True
        if self._head_only or status in _NO_BODY:
            self._framed = self._done = True
            # The parser may wait for a body that does not come.
            self._lasting = self._lasting and not self._head_only

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        if not self._done:
            self._pieces.append(body)
            self._held_bytes += len(body)

    def on_message_complete(self) -> None:
        """The answer is whole; after an interim one the next begins."""
        if self._interim:
            self.headers.clear()
            self._framed = False
        else:
            self._done = True

    def on_message_begin(self) -> None:
        """Notice an answer that nobody has asked for, right behind another."""
        if self._done:
            self._spoiled = True


def _fail(waiting: "asyncio.Future[None]", error: Exception) -> None:
    if not waiting.done():
        waiting.set_exception(error)
