"""Content-defined chunks: all of the bytes, bounded, and the same wherever they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.state_store import checksum
from kvalet.state_store.chunks import (
    MAXIMUM_BYTES,
    MINIMUM_BYTES,
    chunk_ends,
    split,
)

MIB = 1 << 20
ENDS_OF_NOISE = [
    8799,
    31103,
    54428,
    66821,
    83165,
    92454,
    100952,
    112148,
    123766,
    142133,
    150000,
]


def noise(size: int, seed: int = 0) -> bytes:
    """Return random bytes, the same ones every time."""
    return np.random.default_rng(seed).bytes(size)


@given(
    seed=st.integers(0, 99),
    size=st.integers(0, 300_000),
    run=st.binary(min_size=1, max_size=40),
    times=st.integers(0, 5000),
)
def test_chunks_are_the_bytes_within_bounds(
    seed: int, size: int, run: bytes, times: int
) -> None:
    """Nothing is lost; no chunk is too long, none but the last too short."""
    data = noise(size, seed) + run * times
    chunks = split(data)
    assert b"".join(chunks) == data
    assert all(0 < len(chunk) <= MAXIMUM_BYTES for chunk in chunks)
    assert all(len(chunk) >= MINIMUM_BYTES for chunk in chunks[:-1])


def test_a_chunk_has_16_kib_on_average() -> None:
    """Of random bytes, within a tenth."""
    data = noise(32 * MIB)
    mean_bytes = len(data) / len(chunk_ends(data))
    assert 0.9 * 16384 < mean_bytes < 1.1 * 16384


def test_the_ends_are_part_of_the_format() -> None:
    """Any process, any kind of buffer, any time: what is stored is found again."""
    data = noise(150_000, seed=4)
    ends = chunk_ends(data)
    assert ends == ENDS_OF_NOISE
    assert (
        chunk_ends(memoryview(data)) == chunk_ends(memoryview(bytearray(data))) == ends
    )


@pytest.mark.parametrize("byte", [b"\0", b"\xff", b"a"])
def test_equal_bytes_are_equal_chunks(byte: bytes) -> None:
    """A run of one byte has no pattern, or one everywhere: all chunks are alike."""
    chunks = split(byte * 40 * MAXIMUM_BYTES)
    assert len(set(chunks)) == 1


@given(
    at=st.integers(0, 400_000),
    inserted=st.binary(min_size=1, max_size=3000),
    seed=st.integers(0, 9),
)
def test_an_insertion_costs_a_few_chunks(at: int, inserted: bytes, seed: int) -> None:
    """The chunks before it and soon after it are as they were."""
    data = noise(400_000, seed)
    before = set(map(checksum, split(data)))
    after = split(data[:at] + inserted + data[at:])
    new_bytes = sum(len(chunk) for chunk in after if checksum(chunk) not in before)
    assert new_bytes <= 4 * MAXIMUM_BYTES


def test_a_growing_cache_is_mostly_known() -> None:
    """Of 60 runs that each grow by their share, little more than the new part is new.

    1,024 tokens become 1,624 of SmolLM2-135M's size: 36.9 % of it is new.
    """
    runs = [noise(1624 * 384, seed) for seed in range(60)]
    before = b"".join(run[: 1024 * 384] for run in runs)
    known = set(map(checksum, split(before)))
    after = split(b"".join(runs))
    new_bytes = sum(len(chunk) for chunk in after if checksum(chunk) not in known)
    assert 0.369 < new_bytes / sum(map(len, after)) < 0.43
