"""A server that can't do the work is found out when the store is opened."""

import re
from pathlib import Path

import pytest

from kvalet.state_store import StoreUnusable
from kvalet.state_store.redis import RedisStore
from kvalet.state_store.redis.scripts import COMMANDS
from tests.servers import (
    Server,
    any_program,
    free_port,
    program_named,
    serve,
    serve_tls,
    tls_program,
)
from tests.state_store.states import make_state

from .conftest import OpenStore

pytestmark = pytest.mark.asyncio

PASSWORD = "correct-horse"
OURS = [f"+{name}" for name in COMMANDS]


async def why_not(url: str) -> str:
    """Return the one sentence with which the store refuses to open."""
    with pytest.raises(StoreUnusable) as refusal:
        await RedisStore.open(url)
    sentence = str(refusal.value)
    assert "\n" not in sentence and PASSWORD not in sentence and "wrong" not in sentence
    return sentence


async def test_nobody_there() -> None:
    """A port where nobody listens, a socket that is none."""
    url = f"redis://127.0.0.1:{free_port()}"
    assert re.match(f"nobody answers at {url}: ", await why_not(url))
    assert "nobody answers at unix:///nowhere/s" in await why_not("unix:///nowhere/s")


async def test_a_server_that_hangs() -> None:
    """Opening takes no longer than the time for a command."""
    with serve(any_program()) as server:
        server.pause()
        assert "does not answer within 0.5 s" in await why_not(server.url)


@pytest.mark.parametrize("name", ["valkey", "redis"])
async def test_passwords_and_rights(name: str, open_store: OpenStore) -> None:
    """No password, a wrong one, and each right that is missing, by its name."""
    with serve(program_named(name), "--requirepass", PASSWORD) as server:
        at = f"127.0.0.1:{server.port}"
        assert "wants a password for the user 'default'" in await why_not(server.url)
        assert "does not accept the password" in await why_not(f"redis://:wrong@{at}")
        await open_store(url=f"redis://:{PASSWORD}@{at}")

        def allow(*rights: str) -> str:
            words = ("ACL", "SETUSER", "app", "reset", "on", ">pw", *rights)
            assert "+OK" in server.ask(*words, password=PASSWORD)
            return f"redis://app:pw@{at}"

        store = await open_store(url=allow("~kvalet:*", "+ping", *OURS))
        await store.park(make_state("t/a"))
        assert (await store.fetch("t/a"))[0] == make_state("t/a")
        assert "may not ask" in store.notes[0]
        for command in COMMANDS:
            url = allow("~kvalet:*", "+ping", *OURS, f"-{command}")
            assert f"may not run '{command}' on the keys kvalet:*" in await why_not(url)
        url = allow("~other:*", "+ping", *OURS)
        assert "'app' of redis://app:***@" in await why_not(url)
        assert "on the keys kvalet:*; it needs ~kvalet:* +ping +eval" in await why_not(
            url
        )


async def test_a_password_where_there_is_none(server: Server) -> None:
    """A server without passwords doesn't know the user."""
    url = server.url.replace("//", f"//app:{PASSWORD}@")
    assert "does not accept the password for the user 'app'" in await why_not(url)


async def test_an_unknown_database(server: Server) -> None:
    """The number of the database may be too high."""
    assert "has no database 99" in await why_not(f"{server.url}/99")


async def test_tls(open_store: OpenStore, server: Server) -> None:
    """Plain against TLS, TLS against plain, and a certificate of nobody known."""
    with serve_tls(tls_program()) as tls:
        store = await open_store(url=f"{tls.url}?ssl_ca_certs={tls.ca_certs}")
        await store.park(make_state("t/a", bytes(3_000_000)))
        assert (await store.fetch("t/a"))[0] == make_state("t/a", bytes(3_000_000))
        plain = tls.url.replace("rediss", "redis")
        assert "it speaks TLS there: its URL begins with rediss" in await why_not(plain)
        assert "can't be trusted" in await why_not(tls.url)
        assert "ssl_ca_certs=FILE" in await why_not(tls.url)
    encrypted = server.url.replace("redis", "rediss")
    assert "does not speak TLS there" in await why_not(encrypted)
    assert "can't be read" in await why_not(f"{encrypted}?ssl_ca_certs=/nowhere")


async def test_a_unix_socket(open_store: OpenStore, tmp_path: Path) -> None:
    """A socket's path is an address like others."""
    path = tmp_path / "s"
    with serve(any_program(), "--unixsocket", str(path)):
        store = await open_store(url=f"unix://{path}?db=3")
        await store.park(make_state("t/a", bytes(3_000_000)))
        assert (await store.fetch("t/a"))[0] == make_state("t/a", bytes(3_000_000))


async def test_a_replica_alone(server: Server) -> None:
    """A replica takes no writes: its primary is named."""
    with serve(any_program(), "--replicaof", "127.0.0.1", str(server.port)) as replica:
        sentence = await why_not(replica.url)
        assert f"read-only replica of 127.0.0.1:{server.port}" in sentence


async def test_another_kind_than_the_url_says(server: Server) -> None:
    """A node of a cluster, and a server that is none, are told apart."""
    with serve(any_program(), "--cluster-enabled", "yes") as node:
        assert "its URL begins with redis+cluster" in await why_not(node.url)
    url = server.url.replace("redis", "redis+cluster")
    assert "is no cluster: its URL begins with redis://" in await why_not(url)


async def test_notes_on_what_drops_state_silently(
    server: Server, open_store: OpenStore
) -> None:
    """An eviction policy, and a server too small, are worth a sentence each."""
    store = await open_store()
    assert store.notes == ()
    options = ("--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru")
    with serve(any_program(), *options) as small:
        store = await open_store(url=small.url)
        policy, size = store.notes
        assert "maxmemory-policy allkeys-lru" in policy and "silently" in policy
        assert "20,971,520 bytes" in size


async def test_wrong_options(server: Server) -> None:
    """Times and numbers are more than 0."""
    with pytest.raises(StoreUnusable, match="ttl_s is more than 0, not -1"):
        await RedisStore.open(server.url, ttl_s=-1)
    with pytest.raises(StoreUnusable, match="connections is more than 0, not 0"):
        await RedisStore.open(server.url, connections=0)
