"""The sessions whose lease is ours, and what of theirs is stored."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..keys import tenant_of
from ..state import Manifest
from .layout import SessionKeys


@dataclass(slots=True, kw_only=True)
class Held:
    """A session that we hold: with which token, and what it had when we last looked.

    ``manifest`` is None while nothing is parked. ``touched_s`` is when all of its
    segments were last given their full time; None is not known.
    """

    key: str
    keys: SessionKeys
    token: int
    version: str = ""
    manifest: Manifest | None = None
    touched_s: float | None = None


class HeldSessions:
    """What this process holds, counted; segments that states share are counted once."""

    def __init__(self) -> None:
        self._by_key: dict[str, Held] = {}
        self._references: Counter[tuple[str, str]] = Counter()
        self.states = 0
        self.stored_bytes = 0

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._by_key.values()))

    def get(self, key: str) -> Held | None:
        """Return what we hold of the session, if it is ours."""
        return self._by_key.get(key)

    def take(self, held: Held) -> None:
        """Hold a session that was not held."""
        self._by_key[held.key] = held
        self._count(held.manifest, 1)

    def update(self, held: Held, version: str, manifest: Manifest | None) -> None:
        """Take note of what the session has now."""
        is_ours = self._by_key.get(held.key) is held
        if is_ours:
            self._count(held.manifest, -1)
        held.version, held.manifest = version, manifest
        if is_ours:
            self._count(manifest, 1)

    def forget(self, key: str) -> Held | None:
        """Hold the session no more; return what was held."""
        held = self._by_key.pop(key, None)
        if held is not None:
            self._count(held.manifest, -1)
        return held

    def _count(self, manifest: Manifest | None, one: int) -> None:
        if manifest is None:
            return
        tenant = tenant_of(manifest.key)
        self.states += one
        self.stored_bytes += one * max(0, manifest.kv_bytes - manifest.length_bytes)
        for segment in manifest.segments:
            place = tenant, segment.address
            before = self._references[place]
            self._references[place] = before + one
            if before + one == 0:
                del self._references[place]
            if (before == 0) != (before + one == 0):
                self.stored_bytes += one * segment.length_bytes
