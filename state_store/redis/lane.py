"""One connection that moves chunks, used by one thread at a time.

redis-py takes a value apart on the event loop, at a quarter of what the socket gives
and in one long step. Here a chunk goes from the socket to where it belongs by one call
outside of the interpreter's lock, so neither copies it nor holds anybody up.
"""

import contextlib
import socket
import ssl
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Self

from ..state import Payload
from .address import HostPort
from .faults import ServerReply

_LINE_BYTES: Final = 64 * 1024


class WrongLength(Exception):
    """A value is not as long as it has to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a lane leads, and who asks there; a path is that of a unix socket."""

    where: HostPort | str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
    context: ssl.SSLContext | None = field(default=None, repr=False)
    timeout_s: float


class Lane:
    """A connection; each command has ``timeout_s``, then raises TimeoutError.

    After any error but a ``ServerReply`` the lane is of no use: close it.
    """

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._sock = sock
        self._timeout_s = timeout_s
        self._deadline_s = 0.0

    @classmethod
    def open(cls, endpoint: Endpoint) -> Self:
        """Connect and log in; raise OSError or ServerReply."""
        timeout_s, where = endpoint.timeout_s, endpoint.where
        if isinstance(where, str):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(timeout_s)
        else:
            sock = socket.create_connection(where, timeout=timeout_s)
        try:
            if isinstance(where, str):
                sock.connect(where)
            else:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if endpoint.context is not None:
                    sock = endpoint.context.wrap_socket(sock, server_hostname=where[0])
            lane = cls(sock, timeout_s)
            lane._log_in(endpoint)
        except BaseException:
            sock.close()
            raise
        return lane

    def _log_in(self, endpoint: Endpoint) -> None:
        if endpoint.password is not None:
            who = [endpoint.username] if endpoint.username else []
            self.ask("AUTH", *who, endpoint.password)
        if endpoint.db:
            self.ask("SELECT", str(endpoint.db))

    def ask(self, *words: str) -> bytes:
        """Send a command that has a one-line answer; return that."""
        self._begin()
        self._send(b"*%d\r\n" % len(words) + b"".join(map(_bulk, words)))
        line, _ = self._line()
        return line

    def write(self, key: str, data: Payload, life_ms: int) -> None:
        """Set *key* to *data* for a time."""
        self._begin()
        self._send(b"*5\r\n" + _bulk("SET") + _bulk(key) + b"$%d\r\n" % len(data))
        self._send(data)
        self._send(b"\r\n" + _bulk("PX") + _bulk(str(life_ms)))
        self._line()

    def read_into(self, key: str, target: memoryview) -> bool:
        """Fill *target* with the value; return False if there is none.

        Raises WrongLength unless it fits exactly.
        """
        length, rest = self._get(key)
        if length is None:
            return False
        if length != len(target):
            raise WrongLength(f"a chunk has {length} bytes, not {len(target)}")
        self._fill(target, rest)
        return True

    def read(self, key: str, limit_bytes: int) -> bytearray | None:
        """Return the value, if any; raise WrongLength beyond *limit_bytes*."""
        length, rest = self._get(key)
        if length is None:
            return None
        if length > limit_bytes:
            raise WrongLength(f"a chunk has {length} bytes, more than {limit_bytes}")
        value = bytearray(length)
        self._fill(memoryview(value), rest)
        return value

    def abort(self) -> None:
        """Make whoever waits for this connection fail now; from any thread."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _begin(self) -> None:
        self._deadline_s = monotonic() + self._timeout_s

    def _wait_at_most(self) -> None:
        left_s = self._deadline_s - monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)

    def _send(self, data: Payload) -> None:
        self._wait_at_most()
        self._sock.sendall(data)

    def _get(self, key: str) -> tuple[int | None, bytes]:
        self._begin()
        self._send(b"*2\r\n" + _bulk("GET") + _bulk(key))
        line, rest = self._line()
        if line[:1] != b"$":
            raise ConnectionError(f"the server answered GET with {line[:20]!r}")
        length = int(line[1:])
        return (None if length < 0 else length), rest

    def _line(self) -> tuple[bytes, bytes]:
        """Return the answer's first line, and what came behind it."""
        received = bytearray()
        while (end := received.find(b"\r\n")) < 0:
            if len(received) > _LINE_BYTES:
                raise ConnectionError("the server's answer has no end")
            # Little at a time: what belongs to the value should go to its place.
            received += self._receive(64)
        line = bytes(received[:end])
        if line[:1] == b"-":
            raise ServerReply(line[1:].decode(errors="replace"))
        return line, bytes(received[end + 2 :])

    def _receive(self, limit_bytes: int) -> bytes:
        self._wait_at_most()
        data = self._sock.recv(limit_bytes)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def _fill(self, target: memoryview, rest: bytes) -> None:
        filled = min(len(rest), len(target))
        target[:filled] = rest[:filled]
        while filled < len(target):
            self._wait_at_most()
            received = self._sock.recv_into(target[filled:])
            if not received:
                raise ConnectionError("the server closed the connection")
            filled += received
        tail = rest[len(target) :]
        while len(tail) < 2:
            tail += self._receive(2 - len(tail))
        if tail != b"\r\n":
            raise ConnectionError("the server's answer is out of step")


def _bulk(text: str) -> bytes:
    data = text.encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)
