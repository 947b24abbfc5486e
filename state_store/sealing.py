"""How bytes are named and wrapped where others might read them: disk and Redis.

A name in such a place is a digest, so that no tenant's or session's name shows, and
what is written can be encrypted. ``PlainSealer`` only names.
"""

from typing import Protocol

import xxhash

from .state import Payload


class Sealer(Protocol):
    """Names and wraps what leaves the process, by tenant."""

    @property
    def key_id(self) -> str:
        """Which key wraps now; empty where nothing is encrypted."""
        ...

    def name(self, tenant: str, text: str) -> str:
        """Return 32 hex digits that stand for *text* of *tenant*."""
        ...

    def seal(self, tenant: str, label: str, data: Payload) -> Payload:
        """Return *data* wrapped; it opens only under the same tenant and label."""
        ...

    def open(self, tenant: str, label: str, data: Payload) -> Payload:
        """Return what was sealed; raise StateCorrupt if that was something else."""
        ...


class PlainSealer:
    """Wraps nothing; tenants are kept apart by their names."""

    key_id = ""

    def name(self, tenant: str, text: str) -> str:
        """Return 32 hex digits that stand for *text* of *tenant*."""
        return xxhash.xxh3_128_hexdigest(f"{len(tenant)}:{tenant}{text}".encode())

    def seal(self, tenant: str, label: str, data: Payload) -> Payload:
        """Return *data* as it is."""
        return data

    def open(self, tenant: str, label: str, data: Payload) -> Payload:
        """Return *data* as it is."""
        return data
