"""Manifests as bytes, for the tiers outside of the process: a checksum, then msgpack.

What comes in is checked as a whole and field by field: it may be damaged, older than
this code, cut short, or somebody else's.

    >>> from .state import KVState
    >>> state = KVState.seal(
    ...     key="s1", model="m", engine="e", layout="r", token_ids=[1, 2], payload=b"kv"
    ... )
    >>> decode_manifest(encode_manifest(state.manifest)) == state.manifest
    True
"""

from typing import Annotated, Final

import msgspec
import xxhash

from .errors import StateCorrupt
from .state import Manifest, Segment

SCHEMA: Final = "kvalet.state/1"

_CHECKSUM_BYTES: Final = 16

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _SegmentRecord(msgspec.Struct, frozen=True, array_like=True):
    first_token: _Count
    token_count: _Count
    token_hash: str
    length_bytes: _Count
    checksum: str


class _ManifestRecord(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    key: str
    model: str
    engine: str
    layout: str
    head: bytes
    base_hash: str
    kv_bytes: _Count
    segments: Annotated[tuple[_SegmentRecord, ...], msgspec.Meta(min_length=1)]


def encode_manifest(manifest: Manifest) -> bytes:
    """Return *manifest* as bytes: the xxh3-128 of the rest, then msgpack."""
    segments = tuple(
        _SegmentRecord(
            segment.first_token,
            segment.token_count,
            segment.token_hash,
            segment.length_bytes,
            segment.checksum,
        )
        for segment in manifest.segments
    )
    record = msgspec.msgpack.encode(
        _ManifestRecord(
            schema=SCHEMA,
            key=manifest.key,
            model=manifest.model,
            engine=manifest.engine,
            layout=manifest.layout,
            head=manifest.head,
            base_hash=manifest.base_hash,
            kv_bytes=manifest.kv_bytes,
            segments=segments,
        )
    )
    return xxhash.xxh3_128_digest(record) + record


def decode_manifest(data: bytes | memoryview) -> Manifest:
    """Return the manifest in *data*; raise StateCorrupt if it is none of ours."""
    found, packed = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
    if found != xxhash.xxh3_128_digest(packed):
        raise StateCorrupt("a parked manifest fails its checksum")
    try:
        record = msgspec.msgpack.decode(packed, type=_ManifestRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateCorrupt(f"a parked manifest can't be read: {error}") from error
    if record.schema != SCHEMA:
        raise StateCorrupt(
            f"a parked manifest has schema {record.schema!r}, not {SCHEMA!r}"
        )
    return Manifest(
        key=record.key,
        model=record.model,
        engine=record.engine,
        layout=record.layout,
        head=record.head,
        base_hash=record.base_hash,
        kv_bytes=record.kv_bytes,
        segments=tuple(
            Segment(
                first_token=segment.first_token,
                token_count=segment.token_count,
                token_hash=segment.token_hash,
                length_bytes=segment.length_bytes,
                checksum=segment.checksum,
            )
            for segment in record.segments
        ),
    )
