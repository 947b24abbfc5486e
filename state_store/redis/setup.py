"""What is looked at before the first state: whether the server can do the work."""

import ssl
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from redis import exceptions

from ..errors import StoreUnusable
from .address import Address, Shape
from .faults import Failure, ServerReply, read_fault
from .lane import Endpoint, Lane
from .layout import Layout
from .scripts import COMMANDS, PROBE
from .server import Server, Word

_OLDEST_VERSION: Final = 6
_SMALL_BYTES: Final = 64 << 20
_TLS_TOO: Final = "it speaks TLS there: its URL begins with rediss"


def greet(address: Address, endpoint: Endpoint) -> None:
    """Connect, in a thread, to say precisely what hinders; raise StoreUnusable.

    Of several hosts one has to answer.
    """
    hindrance: StoreUnusable | None = None
    for where in address.hosts or (address.path,):
        try:
            _greet_one(address, _door(address, replace(endpoint, where=where)))
        except StoreUnusable as error:
            hindrance = hindrance or error
        else:
            return
    if hindrance is not None:
        raise hindrance


def _door(address: Address, endpoint: Endpoint) -> Endpoint:
    """Return how to log in where the URL leads: sentinels have their own password."""
    if address.shape is not Shape.SENTINEL:
        return endpoint
    return replace(endpoint, username=None, password=address.sentinel_password, db=0)


def _greet_one(address: Address, endpoint: Endpoint) -> None:
    try:
        _ping(endpoint)
    except ssl.SSLCertVerificationError as error:
        raise StoreUnusable(
            f"the certificate of {address} can't be trusted "
            f"({error.verify_message.rstrip('.')}): "
            "?ssl_ca_certs=FILE names the authority that signed it"
        ) from None
    except ServerReply as reply:
        raise StoreUnusable(_refusal(address, str(reply))) from None
    except (OSError, EOFError) as error:
        raise StoreUnusable(_no_connection(address, endpoint, error)) from None


def _ping(endpoint: Endpoint) -> None:
    lane = Lane.open(endpoint)
    try:
        lane.ask("PING")
    finally:
        lane.close()


def _no_connection(address: Address, endpoint: Endpoint, error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return f"nobody answers at {address}: {error.strerror}"
    if "CERTIFICATE_REQUIRED" in str(error) or "HANDSHAKE_FAILURE" in str(error):
        return (
            f"{address} wants a certificate from us: "
            "?ssl_certfile=FILE&ssl_keyfile=FILE name it"
        )
    if endpoint.context is None and _speaks(endpoint, _trusting()):
        return f"{address} can't be used: {_TLS_TOO}"
    if endpoint.context is not None and _speaks(endpoint, None):
        scheme = address.scheme.replace("rediss", "redis")
        return f"{address} does not speak TLS there: its URL begins with {scheme}"
    if isinstance(error, TimeoutError):
        return f"{address} does not answer within {endpoint.timeout_s} s"
    reason = error.strerror if isinstance(error, OSError) else None
    return f"{address} can't be reached: {reason or error}"


def _trusting() -> ssl.SSLContext:
    """Return a context that tells whether there is TLS, whoever it is."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _speaks(endpoint: Endpoint, context: ssl.SSLContext | None) -> bool:
    try:
        _ping(replace(endpoint, context=context, password=None, db=0))
    except ServerReply:
        return True
    except ssl.SSLError as error:
        return "CERTIFICATE_REQUIRED" in str(error)
    except (OSError, EOFError):
        return False
    return True


def _refusal(address: Address, reply: str) -> str:
    code = reply.split(" ", 1)[0]
    match code:
        case "WRONGPASS" | "NOAUTH":
            what = "wants" if address.password is None else "does not accept"
            return f"{address} {what} a password for the user {address.user!r}".replace(
                "accept a password", "accept the password"
            )
        case "NOPERM":
            return f"the user {address.user!r} of {address} may not even PING: {reply}"
        case "LOADING":
            return f"{address} is still loading its data"
        case _ if "AUTH" in reply:
            return f"{address} has no password, and the URL gives one"
        case _ if "DB index" in reply:
            return f"{address} has no database {address.db}"
        case _:
            return f"{address} refuses us: {reply}"


async def check(server: Server, address: Address, layout: Layout) -> tuple[str, ...]:
    """Try everything that we shall need; return what the user should know.

    Raises StoreUnusable: the server is too old, a replica, of another kind than the
    URL says, full, or does not allow us what we need.
    """
    try:
        info = await _info(server)
        if info is not None:
            _check_kind(info, address)
        await _check_rights(server, address, layout)
    except Failure as error:
        raise StoreUnusable(_hindrance(address, error)) from None
    if info is None:
        return (
            f"the user {address.user!r} may not ask {address} for INFO, so it is not "
            "known whether states would be evicted",
        )
    return tuple(_notes(info, address))


async def _info(server: Server) -> dict[str, Any] | None:
    try:
        info: dict[str, Any] = await server.ask("INFO")
    except exceptions.NoPermissionError:
        return None
    return info


def _check_kind(info: dict[str, Any], address: Address) -> None:
    version = str(info.get("redis_version", "0"))
    if int(version.split(".")[0]) < _OLDEST_VERSION:
        raise StoreUnusable(
            f"{address} is Redis {version}; {_OLDEST_VERSION}.0 is the oldest that does"
        )
    if info.get("cluster_enabled") and address.shape is not Shape.CLUSTER:
        raise StoreUnusable(
            f"{address} is a node of a cluster: its URL begins with redis+cluster"
        )
    if info.get("role") == "slave" and address.shape is Shape.SERVER:
        raise StoreUnusable(
            f"{address} is a read-only replica of {info.get('master_host')}:"
            f"{info.get('master_port')}: the URL must name that, or the sentinels"
        )


async def _check_rights(server: Server, address: Address, layout: Layout) -> None:
    for words in _trials(layout):
        try:
            await server.ask(*words)
        except exceptions.NoPermissionError:
            raise StoreUnusable(_no_right(address, layout, str(words[0]))) from None
        except exceptions.ResponseError as error:
            # So say some versions when a script lacks a right.
            if "permission" not in str(error) and "can't run" not in str(error):
                raise
            raise StoreUnusable(_no_right(address, layout, "eval")) from None


def _no_right(address: Address, layout: Layout, command: str) -> str:
    pattern = f"{layout.prefix}:*"
    rights = " ".join(f"+{name}" for name in ("ping", *COMMANDS))
    return (
        f"the user {address.user!r} of {address} may not run {command.lower()!r} on "
        f"the keys {pattern}; it needs ~{pattern} {rights}"
    )


def _trials(layout: Layout) -> Sequence[tuple[Word, ...]]:
    """Return one harmless command for each that we need."""
    text = layout.session_named(f"p{uuid4().hex}").lease
    fields = f"{text}h"
    return (
        ("SET", text, "1", "PX", 1000),
        ("GET", text),
        ("STRLEN", text),
        ("PTTL", text),
        ("PEXPIRE", text, 1000),
        ("EXISTS", text),
        ("UNLINK", text),
        ("HSET", fields, "field", "1"),
        ("PEXPIRE", fields, 1000),
        ("HGET", fields, "field"),
        ("HMGET", fields, "field"),
        ("HGETALL", fields),
        ("HLEN", fields),
        ("HEXISTS", fields, "field"),
        ("HDEL", fields, "field"),
        ("DEL", fields),
        ("TIME",),
        ("SCAN", 0, "MATCH", layout.manifests, "COUNT", 1),
        ("EVAL", PROBE, 1, text),
    )


def _hindrance(address: Address, error: BaseException) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, exceptions.ReadOnlyError):
        return f"{address} is a read-only replica: the URL must name its primary"
    if address.shape is Shape.CLUSTER and "luster mode is not enabled" in text:
        return f"{address} is no cluster: its URL begins with redis://"
    if address.shape is Shape.SENTINEL and "No master found" in text:
        return f"the sentinels of {address} know no service {address.service!r}"
    match read_fault(error).reason:
        case "full":
            return f"{address} is full and takes no writes: {text}"
        case "timeout":
            return f"{address} does not answer in time"
        case "denied":
            return _refusal(address, f"WRONGPASS {text}")
        case _:
            return f"{address} can't be used: {text}"


def _notes(info: dict[str, Any], address: Address) -> list[str]:
    notes: list[str] = []
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        notes.append(
            f"{address} has maxmemory-policy {policy}: when it is full it would drop "
            "parked state silently, which noeviction does not"
        )
    limit_bytes = int(info.get("maxmemory", 0))
    if 0 < limit_bytes < _SMALL_BYTES:
        notes.append(
            f"{address} has maxmemory {limit_bytes:,} bytes; few states fit in that"
        )
    return notes
