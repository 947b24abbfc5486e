"""A parked KV state: a manifest that says what it is, and the bytes, in segments.

Parked state is a cache: losing it costs time, using a wrong one costs a conversation.
So the manifest names everything that must agree before an engine may see the bytes
(weights, engine build, layout, the token ids) and carries a checksum per segment.

A segment is the rows of consecutive tokens, in one piece. A state grows by appending
segments: only those travel at the next park. Their ends lie at multiples of
``BLOCK_TOKENS``, but for the last one's, so sessions that begin alike have equal
segments, and a store keeps equal segments of one tenant once.

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
from itertools import accumulate
from typing import Final, Self

import xxhash

from .errors import StateCorrupt

BLOCK_TOKENS: Final = 128
"""A segment of rows ends where its last token's number is a multiple of this."""

Payload = bytes | memoryview


def checksum(data: Payload) -> str:
    """Return the xxh3-128 of *data* in hex (20 µs per MiB; guards, does not sign)."""
    return xxhash.xxh3_128_hexdigest(data)


def hash_token_ids(token_ids: Sequence[int]) -> str:
    """Return the hash that names a sequence of token ids, as little-endian int32.

    >>> hash_token_ids([1, 2]) == hash_token_ids((1, 2))
    True
    """
    return checksum(_bytes_of(token_ids))


def token_blocks(first_token: int, end_token: int) -> list[tuple[int, int]]:
    """Return where the segments of rows *first_token* to *end_token* begin and end.

    >>> token_blocks(100, 300)
    [(100, 128), (128, 256), (256, 300)]
    """
    inner = range(
        (first_token // BLOCK_TOKENS + 1) * BLOCK_TOKENS, end_token, BLOCK_TOKENS
    )
    ends = [*inner, end_token]
    return list(zip([first_token, *inner], ends, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive token rows of a state: which ones, how many bytes, their checksum.

    ``token_hash`` is that of all token ids up to the segment's end. Of a state whose
    rows can't be told apart, all segments but the last complete no token
    (``token_count`` 0).
    """

    first_token: int
    token_count: int
    token_hash: str
    length_bytes: int
    checksum: str

    @property
    def end_token(self) -> int:
        """How many tokens the state has up to here."""
        return self.first_token + self.token_count

    @property
    def address(self) -> str:
        """What equal segments have in common: their content's checksum and length."""
        return f"{self.checksum}-{self.length_bytes:x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a parked state is; equal manifests mean interchangeable states.

    ``head`` is what the backend needs to make its own format of the rows; nobody else
    reads it. ``kv_bytes`` is what the state takes on the accelerator's link. A real
    engine moves its payload, so it is about that; a simulated one moves bytes that
    nobody stores. ``base_hash`` is of the token ids before the first segment.
    """

    key: str
    model: str
    engine: str
    layout: str
    head: bytes = field(default=b"", repr=False)
    base_hash: str = ""
    kv_bytes: int
    segments: tuple[Segment, ...] = field(repr=False)

    @property
    def first_token(self) -> int:
        """Where the rows begin: 0, or what has to be in the store already."""
        return self.segments[0].first_token

    @property
    def token_count(self) -> int:
        """How many tokens the state is of, those before ``first_token`` included."""
        return self.segments[-1].end_token

    @property
    def token_hash(self) -> str:
        """The hash of all of its token ids."""
        return self.segments[-1].token_hash

    @property
    def length_bytes(self) -> int:
        """Length of all payloads together."""
        return sum(segment.length_bytes for segment in self.segments)

    def continues(self, base: "Manifest") -> bool:
        """Return whether the rows go right behind those of *base*."""
        return (
            self.key == base.key
            and self.model == base.model
            and self.engine == base.engine
            and self.layout == base.layout
            and self.first_token == base.token_count
            and self.base_hash == base.token_hash
        )

    def shared_tokens(self, token_ids: Sequence[int]) -> int:
        """Return how many leading *token_ids* whole segments of the state are of."""
        ids, rolling, shared = _bytes_of(token_ids), xxhash.xxh3_128(), 0
        for segment in self.segments:
            if not segment.token_count:
                continue
            end = segment.end_token
            rolling.update(ids[4 * shared : 4 * end])
            if 4 * end > len(ids) or rolling.hexdigest() != segment.token_hash:
                break
            shared = end
        return shared

    def behind(self, base: "Manifest") -> "Manifest":
        """Return the manifest of *base* and this together."""
        return replace(
            self,
            base_hash=base.base_hash,
            kv_bytes=base.kv_bytes + self.kv_bytes,
            segments=base.segments + self.segments,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KVState:
    """A manifest and one payload per segment."""

    manifest: Manifest
    payloads: tuple[Payload, ...] = field(repr=False)

    @classmethod
    def seal(
        cls,
        *,
        key: str,
        model: str,
        engine: str,
        layout: str,
        token_ids: Sequence[int],
        payload: Payload,
        kv_bytes: int | None = None,
        first_token: int = 0,
        head: bytes = b"",
    ) -> Self:
        """Describe *payload* as one segment: *token_ids* from *first_token* on."""
        return cls.seal_segments(
            key=key,
            model=model,
            engine=engine,
            layout=layout,
            head=head,
            token_ids=token_ids,
            ends=[len(token_ids)],
            payloads=[payload],
            kv_bytes=kv_bytes,
            first_token=first_token,
        )

    @classmethod
    def seal_segments(
        cls,
        *,
        key: str,
        model: str,
        engine: str,
        layout: str,
        token_ids: Sequence[int],
        ends: Sequence[int],
        payloads: Sequence[Payload],
        kv_bytes: int | None = None,
        first_token: int = 0,
        head: bytes = b"",
    ) -> Self:
        """Describe *payloads* as segments; the tokens of each end before ``ends``."""
        ids = _bytes_of(token_ids)
        starts = [first_token, *ends[:-1]]
        rolling = xxhash.xxh3_128(ids[: 4 * first_token])
        base_hash = rolling.hexdigest() if first_token else ""
        segments: list[Segment] = []
        for start, end, payload in zip(starts, ends, payloads, strict=True):
            rolling.update(ids[4 * start : 4 * end])
            segments.append(
                Segment(
                    first_token=start,
                    token_count=end - start,
                    token_hash=rolling.hexdigest(),
                    length_bytes=len(payload),
                    checksum=checksum(payload),
                )
            )
        manifest = Manifest(
            key=key,
            model=model,
            engine=engine,
            layout=layout,
            head=head,
            base_hash=base_hash,
            kv_bytes=sum(map(len, payloads)) if kv_bytes is None else kv_bytes,
            segments=tuple(segments),
        )
        return cls(manifest=manifest, payloads=tuple(payloads))

    def leading(self, token_count: int) -> Self:
        """Return the state of the first *token_count* tokens, if a segment ends there.

        Else return the state as it is.
        """
        manifest = self.manifest
        if token_count >= manifest.token_count:
            return self
        ends = [segment.end_token for segment in manifest.segments]
        if token_count not in ends:
            return self
        count = ends.index(token_count) + 1
        shorter = replace(manifest, segments=manifest.segments[:count])
        unstored_bytes = manifest.kv_bytes - manifest.length_bytes
        part_bytes = unstored_bytes * token_count // manifest.token_count
        shorter = replace(shorter, kv_bytes=shorter.length_bytes + part_bytes)
        return replace(self, manifest=shorter, payloads=self.payloads[:count])

    def behind(self, base: Self) -> Self:
        """Return the whole of which *base* is the beginning and this the rest."""
        return type(self)(
            manifest=self.manifest.behind(base.manifest),
            payloads=base.payloads + self.payloads,
        )

    def verify(self) -> None:
        """Compare every payload with its segment; raise StateCorrupt if they differ."""
        manifest = self.manifest
        if len(self.payloads) != len(manifest.segments):
            raise StateCorrupt(
                f"state {manifest.key!r} has {len(self.payloads)} payloads "
                f"for {len(manifest.segments)} segments"
            )
        ends = accumulate(segment.token_count for segment in manifest.segments)
        covered = 0
        for segment, payload, end in zip(
            manifest.segments, self.payloads, ends, strict=True
        ):
            if segment.first_token != covered:
                raise StateCorrupt(
                    f"state {manifest.key!r} has a segment at token "
                    f"{segment.first_token} where token {covered} is next"
                )
            verify_segment(manifest.key, segment, payload)
            covered = end


def verify_segment(key: str, segment: Segment, payload: Payload) -> None:
    """Raise StateCorrupt unless *payload* is what *segment* says."""
    if len(payload) != segment.length_bytes:
        raise StateCorrupt(
            f"state {key!r} has {len(payload)} bytes from token "
            f"{segment.first_token} on, its manifest says {segment.length_bytes}"
        )
    if checksum(payload) != segment.checksum:
        raise StateCorrupt(
            f"state {key!r} fails its checksum from token {segment.first_token} on"
        )


def _bytes_of(token_ids: Sequence[int]) -> memoryview:
    ids = token_ids if isinstance(token_ids, array) else array("i", token_ids)
    return memoryview(ids).cast("B")
