"""Manifests as bytes: they come back equal, and nothing else passes for one."""

from dataclasses import replace

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvalet.state_store import KVState, Manifest, Segment, StateCorrupt
from kvalet.state_store.codec import decode_manifest, encode_manifest

counts = st.integers(0, 2**40)
segments = st.builds(
    Segment,
    first_token=counts,
    token_count=counts,
    token_hash=st.text(),
    length_bytes=counts,
    checksum=st.text(),
)
manifests = st.builds(
    Manifest,
    key=st.text(),
    model=st.text(),
    engine=st.text(),
    layout=st.text(),
    head=st.binary(),
    base_hash=st.text(),
    kv_bytes=counts,
    segments=st.lists(segments, min_size=1, max_size=4).map(tuple),
)
SMALL = KVState.seal(
    key="a", model="m", engine="e", layout="l", token_ids=[1, 2], payload=b"rows"
).manifest


@given(manifests)
def test_a_manifest_comes_back_equal(manifest: Manifest) -> None:
    """Whatever is in it, also from a view of a larger buffer."""
    data = encode_manifest(manifest)
    assert decode_manifest(data) == manifest
    assert decode_manifest(memoryview(b"x" + data)[1:]) == manifest


def test_every_flipped_bit_is_found() -> None:
    """A manifest that differs in one bit is no manifest."""
    data = encode_manifest(SMALL)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StateCorrupt):
            decode_manifest(bytes(damaged))


def test_every_cut_is_found() -> None:
    """A manifest that lacks its end is no manifest."""
    data = encode_manifest(SMALL)
    for length in range(len(data)):
        with pytest.raises(StateCorrupt, match="checksum"):
            decode_manifest(data[:length])


@pytest.mark.parametrize("packed", [b"", b"\xc0", b"\x80", b"\xff" * 40])
def test_other_bytes_with_a_right_checksum_are_refused(packed: bytes) -> None:
    """What is whole, but none of ours, is refused too."""
    with pytest.raises(StateCorrupt, match="can't be read"):
        decode_manifest(xxhash.xxh3_128_digest(packed) + packed)


def test_another_schema_is_refused_by_name() -> None:
    """A later version's manifest is named, not guessed at."""
    packed = encode_manifest(replace(SMALL, key="k"))[16:]
    packed = packed.replace(b"kvalet.state/1", b"kvalet.state/9")
    with pytest.raises(StateCorrupt, match=r"kvalet\.state/9"):
        decode_manifest(xxhash.xxh3_128_digest(packed) + packed)
