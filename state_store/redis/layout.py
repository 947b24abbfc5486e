"""The keys of a state in Redis.

Of a session, named ``m`` and a digest of its key:

    kvalet:{m…}:m         hash: v version, d manifest, k key, t fencing token
    kvalet:{m…}:l         the lease: "token owner"
    kvalet:{m…}:f         the last fencing token

Of a segment, named ``s`` and a digest of its tenant and content:

    kvalet:{s…}:r         hash: session name -> the token it was claimed with; n chunks
    kvalet:{s…}:0, :1, …  the payload, a MiB each

The braces make a session's keys, and those of a segment, lie in one slot of a cluster:
what touches them together is atomic. Everything expires. Segments live at least as long
as the states that they are of: they are given ``SEGMENT_LIFE`` times the state's time,
and more before a half of that is over.
"""

import re
from dataclasses import dataclass
from typing import Final

from ..errors import StoreUnusable
from ..keys import tenant_of
from ..sealing import Sealer
from ..state import Segment

CHUNK_BYTES: Final = 1 << 20
"""A bigger value stalls whoever shares the server; a smaller one costs round trips."""
SEGMENT_LIFE: Final = 2

_PREFIX: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")


def check_prefix(prefix: str) -> None:
    """Raise StoreUnusable unless *prefix* can begin our keys."""
    if not _PREFIX.fullmatch(prefix):
        raise StoreUnusable(
            f"a key prefix has 1 to 64 letters, digits and _.:/-, not {prefix!r}"
        )


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """The keys of one session; ``name`` stands for it among a segment's referrers."""

    name: str
    lease: str
    fence: str
    manifest: str

    @property
    def all(self) -> tuple[str, str, str]:
        """In the order in which every script takes them."""
        return self.lease, self.fence, self.manifest


@dataclass(frozen=True, slots=True)
class SegmentKeys:
    """The keys of one segment; ``length_bytes`` is 0 where it does not matter."""

    name: str
    referrers: str
    chunks: tuple[str, ...]
    length_bytes: int = 0

    @property
    def all(self) -> tuple[str, ...]:
        """In the order in which every script takes them."""
        return self.referrers, *self.chunks


@dataclass(frozen=True, slots=True)
class Layout:
    """Names keys; the same for every process with equal prefix and naming key."""

    prefix: str
    sealer: Sealer

    def session(self, key: str) -> SessionKeys:
        """Return the keys of the session whose state is parked under *key*."""
        return self.session_named(f"m{self.sealer.name(tenant_of(key), key)}")

    def session_named(self, name: str) -> SessionKeys:
        """Return the keys of the session that goes by *name*."""
        stem = f"{self.prefix}:{{{name}}}"
        return SessionKeys(name, f"{stem}:l", f"{stem}:f", f"{stem}:m")

    def segment(self, tenant: str, segment: Segment) -> SegmentKeys:
        """Return the keys of a segment of *tenant*."""
        name = f"s{self.sealer.name(tenant, segment.address)}"
        chunks = len(chunk_bounds(segment.length_bytes))
        return self.segment_named(name, chunks, segment.length_bytes)

    def segment_named(
        self, name: str, chunks: int, length_bytes: int = 0
    ) -> SegmentKeys:
        """Return the keys of the segment that goes by *name* and has *chunks*."""
        stem = f"{self.prefix}:{{{name}}}"
        places = tuple(f"{stem}:{index}" for index in range(chunks))
        return SegmentKeys(name, f"{stem}:r", places, length_bytes)

    @property
    def manifests(self) -> str:
        """The pattern that all manifests' keys match."""
        return f"{self.prefix}:{{m*}}:m"

    @property
    def referrers(self) -> str:
        """The pattern that all segments' referrers match."""
        return f"{self.prefix}:{{s*}}:r"

    def name_in(self, key: str) -> str:
        """Return the name between the braces of *key*."""
        return key[len(self.prefix) + 2 : key.rindex("}")]


def chunk_lengths(length_bytes: int) -> tuple[int, ...]:
    """Return the lengths of a payload's chunks.

    >>> chunk_lengths(2_500_000), chunk_lengths(0)
    ((1048576, 1048576, 402848), ())
    """
    return tuple(end - start for start, end in chunk_bounds(length_bytes))


def chunk_bounds(length_bytes: int) -> list[tuple[int, int]]:
    """Return where each chunk of a payload begins and ends."""
    return [
        (start, min(start + CHUNK_BYTES, length_bytes))
        for start in range(0, length_bytes, CHUNK_BYTES)
    ]
