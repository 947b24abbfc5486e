"""Puts states in and takes them out, step by step; one call per key at a time.

Parking: claim the segments (their referrers name the session), write the chunks that
aren't there, commit the manifest, release what it does not need any more. Fetching:
take the lease and the manifest, read the chunks, verify. Whatever was claimed for a
state that does not come to be is released; if that fails too, it expires.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import Any, Final

from ..codec import encode_manifest
from ..errors import StateCorrupt, StateMissing, StateStoreError
from ..finish import to_its_end
from ..keys import tenant_of
from ..state import KVState, Manifest, Payload, verify_segment
from .faults import Failure
from .held import Held, HeldSessions
from .lanes import Job, Lanes
from .layout import SEGMENT_LIFE, Layout, SegmentKeys, chunk_lengths
from .leases import Leases, Terms, leased, read_manifest
from .scripts import CLAIM, COMMIT, RELEASE, REMOVE
from .server import Call, Server
from .transfer import ChunkMissing, ChunkWrite, Landing, SegmentUnfit, writes

# How long cleaning up may hold up the caller.
_CLEANING_S: Final = 1.0


class Depot:
    """Moves states; raises StateStoreError and whatever is in ``faults.Failure``."""

    def __init__(
        self,
        server: Server,
        lanes: Lanes,
        layout: Layout,
        held: HeldSessions,
        leases: Leases,
        terms: Terms,
    ) -> None:
        self._server = server
        self._lanes = lanes
        self._layout = layout
        self._held = held
        self._leases = leases
        self._terms = terms
        self._versions = count(1)
        self._owed: dict[str, tuple[Held, set[SegmentKeys]]] = {}

    async def park(self, state: KVState) -> None:
        """Store the state, or add it to what its key holds."""
        key = state.manifest.key
        try:
            held = self._held.get(key) or await self._acquire(key, needs_state=False)
            await self._put(held, state, _whole(state.manifest, held.manifest))
        except BaseException:
            await self._let_go_of_nothing(key)
            raise

    async def fetch(self, key: str) -> KVState:
        """Take the lease and return the state, verified; what is unfit is dropped."""
        try:
            held = await self._acquire(key, needs_state=True)
            if held.manifest is None:
                raise StateMissing(f"no state is parked under {key!r}")
            return await self._load(key, held.manifest)
        except SegmentUnfit as unfit:
            if isinstance(unfit.reason, StateCorrupt):
                await self._quietly(self._server.ask("UNLINK", *unfit.keys.all))
            await self._quietly(self._remove(key))
            raise unfit.reason from None
        except StateCorrupt:
            await self._quietly(self._remove(key))
            raise

    async def read(self, key: str, manifest: Manifest) -> KVState:
        """Return the state, verified, whoever owns it; changes nothing."""
        try:
            return await self._load(key, manifest)
        except SegmentUnfit as unfit:
            raise unfit.reason from None

    async def drop(self, key: str) -> None:
        """Remove the state and its lease; raise StateLeased if another owns it."""
        await to_its_end(self._remove(key))

    def is_stale(self, key: str) -> bool:
        """Return whether segments of ours should be given time again."""
        held = self._held.get(key)
        if held is None or held.manifest is None:
            return False
        return (
            held.touched_s is None
            or (monotonic() - held.touched_s) * 2000 >= self._terms.ttl_ms
        )

    async def refresh(self, key: str) -> None:
        """Give the segments of a state their full time; raise ChunkMissing."""
        held = self._held.get(key)
        if held is None or held.manifest is None:
            return
        now_s = monotonic()
        if any(await self._claim(held, self._segments(held.manifest))):
            await self._quietly(self._remove(key))
            raise ChunkMissing(f"state {key!r} lacks some of its rows")
        held.touched_s = now_s

    @property
    def owing(self) -> tuple[str, ...]:
        """The keys of states that claims have still to be released of."""
        return tuple(self._owed)

    async def settle(self, key: str) -> None:
        """Release what was claimed for the state and is not of it."""
        if (owed := self._owed.get(key)) is None:
            return
        held, segments = owed
        now = self._held.get(key)
        if now is not None:
            segments = segments - set(self._segments(now.manifest))
        await self._release(held.keys.name, held.token, segments)
        if self._owed.get(key) is owed:
            del self._owed[key]

    def key_in(self, name: str, sealed: bytes) -> str:
        """Return the key that a manifest was stored under; raise StateCorrupt."""
        try:
            key = bytes(self._layout.sealer.open("", name, sealed)).decode()
        except UnicodeDecodeError:
            key = None
        if key is None or self._layout.session(key).name != name:
            raise StateCorrupt("a key was sealed otherwise than the keys here say")
        return key

    async def _acquire(self, key: str, *, needs_state: bool) -> Held:
        return await to_its_end(self._leases.acquire(key, needs_state=needs_state))

    async def _let_go_of_nothing(self, key: str) -> None:
        """Keep no lease where there is no state."""
        held = self._held.get(key)
        if held is not None and held.manifest is None:
            self._held.forget(key)
            await self._quietly(self._leases.let_go([held]))

    async def _load(self, key: str, manifest: Manifest) -> KVState:
        tenant, covered = tenant_of(key), 0
        landings: list[Landing] = []
        for segment in manifest.segments:
            if segment.first_token != covered:
                raise StateCorrupt(
                    f"state {key!r} has a segment at token {segment.first_token} "
                    f"where token {covered} is next"
                )
            covered = segment.end_token
            keys = self._layout.segment(tenant, segment)
            if not keys.chunks:
                verify_segment(key, segment, b"")
            landings.append(Landing(key, tenant, segment, keys, self._layout.sealer))
        await self._carry([job for landing in landings for job in landing.jobs()])
        return KVState(
            manifest=manifest, payloads=tuple(landing.payload for landing in landings)
        )

    async def _put(self, held: Held, state: KVState, whole: Manifest) -> None:
        before, now_s = held.manifest, monotonic()
        is_continued = bool(state.manifest.first_token)
        if is_continued and self.is_stale(held.key):
            await self.refresh(held.key)
        tenant = tenant_of(held.key)
        claims = {
            self._layout.segment(tenant, segment): payload
            for segment, payload in zip(
                state.manifest.segments, state.payloads, strict=True
            )
            if len(payload)
        }
        try:
            # A claim that is on its way could arrive after its own release.
            absent = await to_its_end(self._claim(held, list(claims)))
            await self._carry(self._writes(tenant, claims, absent))
        except BaseException as error:
            self._owe(held, set(claims) - set(self._segments(before)))
            if not isinstance(error, Failure):
                await self._quietly(self.settle(held.key))
            raise
        await to_its_end(self._commit(held, whole, is_continued, set(claims)))
        if not is_continued:
            held.touched_s = now_s

    async def _commit(
        self, held: Held, whole: Manifest, is_continued: bool, claims: set[SegmentKeys]
    ) -> None:
        sealer, terms, before = self._layout.sealer, self._terms, held.manifest
        version = f"{next(self._versions)}:{terms.owner_id}"
        tenant, name = tenant_of(whole.key), held.keys.name
        try:
            answer: list[Any] = await self._server.run(
                COMMIT,
                held.keys.all,
                terms.owner_id,
                held.token,
                terms.lease_ms,
                terms.ttl_ms,
                held.version,
                int(is_continued),
                version,
                bytes(sealer.seal(tenant, name, encode_manifest(whole))),
                bytes(sealer.seal("", name, whole.key.encode())),
            )
        except Failure:
            # Nobody knows whether it was done: look before the next time.
            self._held.forget(held.key)
            raise
        kept, left = set(self._segments(whole)), set(self._segments(before))
        if answer[0] != b"ok":
            self._held.forget(held.key)
            self._owe(held, claims - left)
            await self._quietly(self.settle(held.key))
            if answer[0] == b"leased":
                raise leased(held.key, answer[1])
            raise StateMissing(f"the state that {held.key!r} continues is gone")
        held.token = int(answer[1])
        if self._held.get(held.key) is not held:
            self._held.take(held)
        self._held.update(held, version, whole)
        self._owe(held, left - kept)
        await self._quietly(self.settle(held.key))

    def _segments(self, manifest: Manifest | None) -> list[SegmentKeys]:
        """Return the segments that are stored at all, each once."""
        if manifest is None:
            return []
        tenant = tenant_of(manifest.key)
        stored = filter(lambda segment: segment.length_bytes, manifest.segments)
        return list(
            dict.fromkeys(self._layout.segment(tenant, segment) for segment in stored)
        )

    def _writes(
        self,
        tenant: str,
        claims: Mapping[SegmentKeys, Payload],
        absent: Iterable[Sequence[int]],
    ) -> list[ChunkWrite]:
        return [
            write
            for (keys, payload), indexes in zip(claims.items(), absent, strict=True)
            for write in writes(
                keys,
                payload,
                indexes,
                tenant=tenant,
                sealer=self._layout.sealer,
                life_ms=SEGMENT_LIFE * self._terms.ttl_ms,
            )
        ]

    async def _carry(self, jobs: Sequence[Job]) -> None:
        places = await self._server.where([job.key for job in jobs])
        await self._lanes.carry(zip(places, jobs, strict=True))

    async def _claim(
        self, held: Held, segments: Sequence[SegmentKeys]
    ) -> list[list[int]]:
        """Name the session among the segments' referrers; return absent chunks."""
        life_ms = SEGMENT_LIFE * self._terms.ttl_ms
        # A chunk of another length was cut short, or sealed in another way.
        seal_bytes = len(self._layout.sealer.seal(tenant_of(held.key), "", b""))
        calls: list[Call] = []
        for keys in segments:
            lengths = (
                length + seal_bytes for length in chunk_lengths(keys.length_bytes)
            )
            calls.append((keys.all, (held.keys.name, held.token, life_ms, *lengths)))
        return await self._server.run_each(CLAIM, calls)

    async def _release(
        self, name: str, token: int, segments: Iterable[SegmentKeys]
    ) -> None:
        calls: list[Call] = [(keys.all, (name, token)) for keys in segments]
        await self._server.run_each(RELEASE, calls)

    async def _remove(self, key: str) -> None:
        """Remove the manifest and the lease, then what only it referred to."""
        keys = self._layout.session(key)
        answer: list[Any] = await self._server.run(
            REMOVE, keys.all, self._terms.owner_id
        )
        held = self._held.forget(key)
        if answer[0] == b"leased":
            raise leased(key, answer[1])
        _, data, token = answer
        if not data:
            return
        manifest: Manifest | None
        try:
            manifest = read_manifest(self._layout.sealer, key, keys, data)
        except StateCorrupt:
            manifest = None if held is None else held.manifest
        was = Held(key=key, keys=keys, token=int(token))
        self._owe(was, set(self._segments(manifest)))
        await self._quietly(self.settle(key))

    def _owe(self, held: Held, segments: set[SegmentKeys]) -> None:
        if segments:
            _, earlier = self._owed.get(held.key, (held, set[SegmentKeys]()))
            self._owed[held.key] = held, earlier | segments

    async def _quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        """Tidy up, whatever comes of it and whoever is cancelled, for a short time."""
        with suppress(StateStoreError, *Failure):
            await to_its_end(_at_most(_CLEANING_S, work))


async def _at_most(limit_s: float, work: Coroutine[Any, Any, Any]) -> None:
    async with asyncio.timeout(limit_s):
        await work


def _whole(manifest: Manifest, before: Manifest | None) -> Manifest:
    """Return what the key holds afterwards; raise StateMissing."""
    if not manifest.first_token:
        return manifest
    if before is None:
        raise StateMissing(f"no state is parked under {manifest.key!r} to continue")
    if not manifest.continues(before):
        raise StateMissing(
            f"the state under {manifest.key!r} ends at token {before.token_count}, or "
            f"is another; these rows begin at token {manifest.first_token}"
        )
    return manifest.behind(before)
