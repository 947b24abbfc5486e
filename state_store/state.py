"""A parked KV state: a manifest that says what it is, and the bytes.

Parked state is a cache: losing it costs time, using a wrong one costs a conversation.
So the manifest names everything that must agree before an engine may see the bytes
(weights, engine build, layout, the token ids) and carries a checksum per segment.

    >>> state = KVState.seal(
    ...     key="s1", model="m", engine="e", layout="r", token_ids=[1, 2], payload=b"kv"
    ... )
    >>> state.verify()
    >>> state.manifest.token_count
    2
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import xxhash

from .errors import StateCorrupt


def checksum(data: bytes | memoryview) -> str:
    """Return the xxh3-128 of *data* in hex (20 µs per MiB; guards, does not sign)."""
    return xxhash.xxh3_128_hexdigest(data)


def hash_token_ids(token_ids: Sequence[int]) -> str:
    """Return the hash that names a sequence of token ids, as little-endian int32.

    >>> hash_token_ids([1, 2]) == hash_token_ids((1, 2))
    True
    """
    ids = token_ids if isinstance(token_ids, array) else array("i", token_ids)
    return checksum(memoryview(ids).cast("B"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive token rows of a state: which ones, how many bytes, their checksum."""

    first_token: int
    token_count: int
    length_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a parked state is; equal manifests mean interchangeable states.

    ``kv_bytes`` is what the state takes on the accelerator's link. A real engine moves
    its payload, so both are equal; a simulated one moves bytes that nobody stores.
    """

    key: str
    model: str
    engine: str
    layout: str
    token_count: int
    token_hash: str
    kv_bytes: int
    segments: tuple[Segment, ...]

    @property
    def first_token(self) -> int:
        """Where the rows begin: 0, or what has to be in the store already."""
        return self.segments[0].first_token

    def continues(self, base: "Manifest") -> bool:
        """Return whether the rows go right behind those of *base*."""
        ours = (self.key, self.model, self.engine, self.layout, self.first_token)
        return ours == (
            base.key,
            base.model,
            base.engine,
            base.layout,
            base.token_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KVState:
    """A manifest and one payload per segment."""

    manifest: Manifest
    payloads: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def seal(
        cls,
        *,
        key: str,
        model: str,
        engine: str,
        layout: str,
        token_ids: Sequence[int],
        payload: bytes,
        kv_bytes: int | None = None,
        first_token: int = 0,
    ) -> Self:
        """Describe *payload* as one segment: *token_ids* from *first_token* on."""
        segment = Segment(
            first_token=first_token,
            token_count=len(token_ids) - first_token,
            length_bytes=len(payload),
            checksum=checksum(payload),
        )
        manifest = Manifest(
            key=key,
            model=model,
            engine=engine,
            layout=layout,
            token_count=len(token_ids),
            token_hash=hash_token_ids(token_ids),
            kv_bytes=len(payload) if kv_bytes is None else kv_bytes,
            segments=(segment,),
        )
        return cls(manifest=manifest, payloads=(payload,))

    def behind(self, base: Self) -> Self:
        """Return the whole of which *base* is the beginning and this the rest."""
        manifest = replace(
            self.manifest,
            kv_bytes=base.manifest.kv_bytes + self.manifest.kv_bytes,
            segments=base.manifest.segments + self.manifest.segments,
        )
        payloads = base.payloads + self.payloads
        return type(self)(manifest=manifest, payloads=payloads)

    def verify(self) -> None:
        """Compare every payload with its segment; raise StateCorrupt if they differ."""
        manifest = self.manifest
        if len(self.payloads) != len(manifest.segments):
            raise StateCorrupt(
                f"state {manifest.key!r} has {len(self.payloads)} payloads "
                f"for {len(manifest.segments)} segments"
            )
        covered = 0
        for segment, payload in zip(manifest.segments, self.payloads, strict=True):
            if segment.first_token != covered:
                raise StateCorrupt(
                    f"state {manifest.key!r} has a segment at token "
                    f"{segment.first_token} where token {covered} is next"
                )
            if len(payload) != segment.length_bytes:
                raise StateCorrupt(
                    f"state {manifest.key!r} has {len(payload)} bytes from token "
                    f"{covered} on, its manifest says {segment.length_bytes}"
                )
            if checksum(payload) != segment.checksum:
                raise StateCorrupt(
                    f"state {manifest.key!r} fails its checksum from token {covered} on"
                )
            covered += segment.token_count
        if covered != manifest.token_count:
            raise StateCorrupt(
                f"state {manifest.key!r} covers {covered} tokens, "
                f"its manifest says {manifest.token_count}"
            )
