"""What travels over HTTP, as plain data, and the seam to whatever carries it.

Header names are lower case everywhere on this side of the wire; values are the peer's
bytes. Bodies of requests are whole (they have to be read to be scheduled), bodies of
answers are streams.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, Self
from urllib.parse import SplitResult, urlsplit

from .errors import WrongAddress

Headers = tuple[tuple[bytes, bytes], ...]

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a server is: scheme (http or https), host, port.

    >>> Origin.parse("http://localhost:8080/v1")
    Origin(scheme='http', host='localhost', port=8080)
    """

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return the origin of *url*; raise WrongAddress where it has none."""
        try:
            parts: SplitResult = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise WrongAddress(f"{url!r} is no address of a server: {error}") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise WrongAddress(
                f"{url!r} is no address of a server: it has to begin with http:// or "
                f"https:// and a host"
            )
        return cls(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port or _PORTS[parts.scheme],
        )

    @property
    def authority(self) -> str:
        """Host and port as a ``host`` header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request: ``target`` is path and query as they are sent.

    ``headers`` have neither ``host`` nor ``content-length`` nor anything that concerns
    the connection: the carrier adds what it needs.
    """

    method: str
    target: str
    headers: Headers
    body: bytes = b""


class Answer(Protocol):
    """A response whose head is there; iterate over it once for its body.

    Close it in any case. Closing before the end aborts the exchange, so that the peer
    notices. Iterating raises ConnectionBroken or PeerSilent.
    """

    status: int
    headers: Headers

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the body, in pieces as they come, still compressed if it was."""
        ...

    async def aclose(self) -> None:
        """Let go of the connection: back to the pool if all was read, else cut."""
        ...


class Carrier(Protocol):
    """Sends requests to servers: our own connections, or a library's."""

    async def send(
        self, origin: Origin, outgoing: Outgoing, *, silence_s: float | None = None
    ) -> Answer:
        """Return the answer as soon as its head is there.

        *silence_s* is how long the peer may say nothing, then and later. Raises
        ConnectFailed where nothing was sent, else ConnectionBroken or PeerSilent.
        Cancelling aborts the exchange.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...
