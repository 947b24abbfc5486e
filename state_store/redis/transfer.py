"""Segments on their way out and in, a chunk at a time; all of it runs in threads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from ..errors import StateCorrupt, StateMissing, StateStoreError
from ..room import make_room
from ..sealing import Sealer
from ..state import Payload, Segment, verify_segment
from .lane import Lane, WrongLength
from .layout import SegmentKeys, chunk_bounds

# How much longer than its content a sealed chunk may be.
_SEAL_BYTES: Final = 1024


class ChunkMissing(StateMissing):
    """A state is there, and some of its bytes are not."""


class SegmentUnfit(Exception):
    """A segment can't be given out: ``reason`` says why, ``keys`` which one it is."""

    def __init__(self, keys: SegmentKeys, reason: StateStoreError) -> None:
        super().__init__(str(reason))
        self.keys = keys
        self.reason = reason


def label(keys: SegmentKeys, index: int) -> str:
    """Return what a chunk is sealed under: its name."""
    return f"{keys.name}:{index}"


@dataclass(frozen=True, slots=True)
class ChunkWrite:
    """A chunk that is to be stored for ``life_ms``."""

    key: str
    payload: Payload = field(repr=False)
    tenant: str
    label: str
    sealer: Sealer
    life_ms: int

    def run(self, lane: Lane) -> None:
        """Seal and send it."""
        sealed = self.sealer.seal(self.tenant, self.label, self.payload)
        lane.write(self.key, sealed, self.life_ms)


def writes(
    keys: SegmentKeys,
    payload: Payload,
    absent: Sequence[int],
    *,
    tenant: str,
    sealer: Sealer,
    life_ms: int,
) -> Iterator[ChunkWrite]:
    """Yield what stores the *absent* chunks of a segment."""
    view, bounds = memoryview(payload), chunk_bounds(len(payload))
    for index in absent:
        start, end = bounds[index]
        yield ChunkWrite(
            keys.chunks[index],
            view[start:end],
            tenant,
            label(keys, index),
            sealer,
            life_ms,
        )


class Landing:
    """A segment on its way in; the chunk that completes it has it verified."""

    def __init__(
        self, key: str, tenant: str, segment: Segment, keys: SegmentKeys, sealer: Sealer
    ) -> None:
        self._key = key
        self._tenant = tenant
        self._segment = segment
        self._keys = keys
        self._sealer = sealer
        self._room: memoryview | None = None
        self._bounds = chunk_bounds(segment.length_bytes)
        self._left = set(range(len(self._bounds)))
        self._lock = Lock()

    @property
    def payload(self) -> Payload:
        """What has come in."""
        return b"" if self._room is None else self._room.toreadonly()

    def jobs(self) -> "Iterator[ChunkRead]":
        """Yield what fetches the chunks."""
        for index, key in enumerate(self._keys.chunks):
            yield ChunkRead(key, self, index)

    def read(self, lane: Lane, index: int) -> None:
        """Fetch a chunk to its place; raise SegmentUnfit."""
        start, end = self._bounds[index]
        try:
            with self._lock:
                # Not before: it takes time, and here that is a thread's.
                room = self._room = self._room or make_room(self._segment.length_bytes)
            if not self._fill(lane, index, room[start:end]):
                raise ChunkMissing(
                    f"state {self._key!r} lacks a chunk of its rows from token "
                    f"{self._segment.first_token} on"
                )
            with self._lock:
                self._left.discard(index)
                is_complete = not self._left
            if is_complete:
                verify_segment(self._key, self._segment, room)
        except WrongLength as error:
            reason = StateCorrupt(f"state {self._key!r}: {error}")
            raise SegmentUnfit(self._keys, reason) from None
        except StateStoreError as error:
            raise SegmentUnfit(self._keys, error) from None

    def _fill(self, lane: Lane, index: int, target: memoryview) -> bool:
        key = self._keys.chunks[index]
        if not self._sealer.key_id:
            return lane.read_into(key, target)
        sealed = lane.read(key, len(target) + _SEAL_BYTES)
        if sealed is None:
            return False
        opened = self._sealer.open(
            self._tenant, label(self._keys, index), memoryview(sealed)
        )
        if len(opened) != len(target):
            raise WrongLength(f"a chunk has {len(opened)} bytes, not {len(target)}")
        target[:] = opened
        return True


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """A chunk that is to be fetched."""

    key: str
    landing: Landing = field(repr=False)
    index: int

    def run(self, lane: Lane) -> None:
        """Fetch it; raise SegmentUnfit."""
        self.landing.read(lane, self.index)
