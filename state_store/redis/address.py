"""Where the server is and who we are there: a URL, taken apart.

>>> print(read_address("rediss://kvalet:secret@cache.example:6380/2"))
rediss://kvalet:***@cache.example:6380/2
>>> read_address("redis+sentinel://a:26379,b/main?db=1").hosts
(('a', 26379), ('b', 26379))
"""

import ssl
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import StoreUnusable


class Shape(Enum):
    """What stands behind the address."""

    SERVER = auto()
    SOCKET = auto()
    SENTINEL = auto()
    CLUSTER = auto()


_SCHEMES: Final = {
    "redis": (Shape.SERVER, False),
    "rediss": (Shape.SERVER, True),
    "unix": (Shape.SOCKET, False),
    "redis+sentinel": (Shape.SENTINEL, False),
    "rediss+sentinel": (Shape.SENTINEL, True),
    "redis+cluster": (Shape.CLUSTER, False),
    "rediss+cluster": (Shape.CLUSTER, True),
}
_PORTS: Final = {Shape.SENTINEL: 26379}
OPTIONS: Final = (
    "db",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_check_hostname",
    "sentinel_password",
)

HostPort = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How the server proves who it is, and how we do."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Return a context that verifies the server; raise StoreUnusable."""
        try:
            context = ssl.create_default_context(cafile=self.ca_certs)
            context.check_hostname = self.check_hostname
            if self.certfile is not None:
                context.load_cert_chain(self.certfile, self.keyfile)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (self.ca_certs, self.certfile)))
            raise StoreUnusable(
                f"the certificates in {files} can't be read: {error}"
            ) from None
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A Redis URL; its text never shows a password.

    ``hosts`` are those of the server, the sentinels or some nodes of the cluster,
    ``path`` that of a unix socket, ``service`` what the sentinels call the server.
    """

    shape: Shape
    scheme: str
    hosts: tuple[HostPort, ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    tls: Tls | None = None

    @property
    def user(self) -> str:
        """Who we are to the server's access control."""
        return self.username or "default"

    def __str__(self) -> str:
        """Return the URL with the password blotted out."""
        who = self.username or ""
        if self.password is not None:
            who += ":***"
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        where = self.path or f"{hosts}/{self.service}"
        db = "" if self.shape is Shape.CLUSTER else str(self.db or "")
        if db:
            where += f"?db={db}" if self.service or self.path else db
        return f"{self.scheme}://{who and who + '@'}{where}".rstrip("/")


def read_address(url: str) -> Address:
    """Return what *url* says; raise StoreUnusable, which never shows a password."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise StoreUnusable(
            f"a Redis URL begins with one of {', '.join(_SCHEMES)} and '://', "
            f"not {scheme[:20]!r}"
        )
    shape, encrypted = _SCHEMES[scheme]
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise StoreUnusable(
            f"the Redis URL has the option {unknown[0]!r}; "
            f"there are {', '.join(OPTIONS)}"
        )
    credentials, _, netloc = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    path = unquote(parts.path)
    service = path.strip("/") if shape is Shape.SENTINEL else ""
    if shape is Shape.SENTINEL and not service:
        raise StoreUnusable(
            "a redis+sentinel URL names the service behind its hosts: "
            f"{scheme}://host:26379/SERVICE"
        )
    if shape is Shape.SOCKET and not path.strip("/"):
        raise StoreUnusable(
            "a unix URL names the socket's path: unix:///run/redis.sock"
        )
    return Address(
        shape=shape,
        scheme=scheme,
        hosts=() if shape is Shape.SOCKET else _hosts(netloc, _PORTS.get(shape, 6379)),
        path=path if shape is Shape.SOCKET else "",
        service=service,
        db=_db(shape, path, options),
        username=unquote(username) or None,
        password=unquote(password) or None,
        sentinel_password=options.get("sentinel_password"),
        tls=_tls(options) if encrypted else None,
    )


def _hosts(netloc: str, port: int) -> tuple[HostPort, ...]:
    return tuple(_host(text, port) for text in (netloc or "localhost").split(","))


def _host(text: str, port: int) -> HostPort:
    try:
        parts = urlsplit(f"//{text}")
        host, own_port = parts.hostname, parts.port
    except ValueError:
        host, own_port = None, None
    if not host:
        raise StoreUnusable(f"{text!r} in the Redis URL is no host:port")
    return host, own_port or port


def _db(shape: Shape, path: str, options: dict[str, str]) -> int:
    text = options.get("db", path.strip("/") if shape is Shape.SERVER else "") or "0"
    if not text.isdecimal():
        raise StoreUnusable(f"the database in the Redis URL is a number, not {text!r}")
    if shape is Shape.CLUSTER and text != "0":
        raise StoreUnusable(f"a Redis cluster has database 0 alone, not {text}")
    return int(text)


def _tls(options: dict[str, str]) -> Tls:
    check = options.get("ssl_check_hostname", "true").lower()
    if check not in ("true", "false"):
        raise StoreUnusable(f"ssl_check_hostname is true or false, not {check!r}")
    return Tls(
        ca_certs=options.get("ssl_ca_certs"),
        certfile=options.get("ssl_certfile"),
        keyfile=options.get("ssl_keyfile"),
        check_hostname=check == "true",
    )
