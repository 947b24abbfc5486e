"""Manifests that are right in themselves, in the wrong place: nobody is taken in.

They belong to an earlier state of the session, as after a fail-over to a replica that
was behind, to another session, to another model, or to other tokens.
"""

from collections.abc import Callable, Generator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import pytest
from redis import Redis

from kvalet import LlamaBackend, Runtime
from kvalet.scheduler import Copied, RestoreFailed, RestoreStarted
from kvalet.state_store import Manifest, hash_token_ids
from kvalet.state_store.aes_gcm import AesGcmSealer
from kvalet.state_store.codec import decode_manifest, encode_manifest
from kvalet.state_store.redis import RedisStore
from kvalet.state_store.redis.layout import Layout
from kvalet.state_store.sealing import PlainSealer, Sealer

from ..servers import Server, any_program, serve
from .stage import MOST_WAIT_S, Tokens, Watch, converse, nothing_left, until_moving

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEALERS: dict[str, Sealer] = {
    "plain": PlainSealer(),
    "encrypted": AesGcmSealer({"first": bytes(range(32))}),
}

Forge = Callable[[Manifest], Manifest]


def of_another_model(manifest: Manifest) -> Manifest:
    """Return it as if other weights had made the rows."""
    return replace(manifest, model="another")


def of_another_build(manifest: Manifest) -> Manifest:
    """Return it as if another engine had made the rows."""
    return replace(manifest, engine="another")


def of_another_layout(manifest: Manifest) -> Manifest:
    """Return it as if the rows were laid out otherwise."""
    return replace(manifest, layout="another")


def of_other_tokens(manifest: Manifest) -> Manifest:
    """Return it as if the last rows were of other tokens."""
    *rest, last = manifest.segments
    last = replace(last, token_hash=hash_token_ids([1, 2, 3]))
    return replace(manifest, segments=(*rest, last))


def of_fewer_tokens(manifest: Manifest) -> Manifest:
    """Return it as it may have been some turns ago."""
    return replace(manifest, segments=manifest.segments[:-1])


def of_another_session(manifest: Manifest) -> Manifest:
    """Return it as if it were somebody else's."""
    return replace(manifest, key="b")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the manifest of session a is; it can be read and replaced there."""

    server: Server
    sealer: Sealer

    def read(self) -> dict[bytes, bytes]:
        """Return all of its fields."""
        with self._client() as client:
            found: dict[bytes, bytes] = client.hgetall(self._key)
        return found

    def write(self, fields: dict[bytes, bytes]) -> None:
        """Set all of its fields."""
        with self._client() as client:
            assert client.exists(self._key)
            client.hset(self._key, mapping=dict[Any, Any](fields))

    def forge(self, forge: Forge) -> None:
        """Replace the manifest, and seal it rightly."""
        fields, label = self.read(), self._layout.session("a").name
        manifest = decode_manifest(self.sealer.open("", label, fields[b"d"]))
        forged = self.sealer.seal("", label, encode_manifest(forge(manifest)))
        self.write(fields | {b"d": bytes(forged), b"v": b"another"})

    @property
    def _layout(self) -> Layout:
        return Layout("kvalet", self.sealer)

    @property
    def _key(self) -> str:
        return self._layout.session("a").manifest

    def _client(self) -> Any:
        return Redis(port=self.server.port)


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    """A server for this file."""
    with serve(any_program()) as server:
        yield server


@pytest.fixture(params=SEALERS)
def place(server: Server, request: pytest.FixtureRequest) -> Place:
    """Where things are put that don't belong there."""
    return Place(server, SEALERS[request.param])


@pytest.mark.parametrize(
    "forge",
    [
        of_another_model,
        of_another_build,
        of_another_layout,
        of_other_tokens,
        of_fewer_tokens,
        of_another_session,
    ],
)
async def test_a_manifest_that_does_not_fit(
    backend: LlamaBackend, expected: list[Tokens], place: Place, forge: Forge
) -> None:
    """It is refused, whatever it differs in, and the state is computed again."""
    watch = Watch()
    watch.at(RestoreStarted, "a", lambda: place.forge(forge))
    await live_through(backend, expected, place, watch)


async def test_a_manifest_of_some_turns_ago(
    backend: LlamaBackend, expected: list[Tokens], place: Place
) -> None:
    """A server that forgot the last park: what it has is not what is asked for."""
    watch, earlier = Watch(), dict[bytes, bytes]()

    def remember() -> None:
        earlier.update(place.read())
        watch.at(Copied, "a", lambda: watch.at(RestoreStarted, "a", put_back))

    def put_back() -> None:
        place.write(earlier)

    watch.at(Copied, "a", remember)
    await live_through(backend, expected, place, watch)


async def live_through(
    backend: LlamaBackend, expected: list[Tokens], place: Place, watch: Watch
) -> None:
    """Converse as session a, one of whose restores has to fail."""
    async with nothing_left(place.server):
        opened = await RedisStore.open(
            place.server.url, sealer=place.sealer, ttl_s=1, lease_s=1
        )
        async with aclosing(opened) as store:
            async with Runtime(
                backend, store=store, policy="park", observers=[watch.hear]
            ) as runtime:
                assert await converse(runtime, "a") == expected
                assert watch.struck
                assert watch.count(RestoreFailed) >= 1
                await until_moving(runtime, watch)
                runtime.scheduler.check_integrity()
            stat = await store.stat()
            assert stat.states == stat.stored_bytes == 0
    assert max(watch.waits_s) < MOST_WAIT_S
