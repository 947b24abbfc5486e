"""The books of a tier with a budget: what is kept, what it takes, and who has to leave.

Only manifests are here; where the bytes lie is the tier's business. Segments of one
tenant with equal content are one, kept as long as a state names it. A state takes the
bytes of its segments, each counted once however many states share it, and those that it
stands for without carrying them (``Manifest.kv_bytes``, of simulated states).

Who is worth least per byte that its leaving would free leaves first; of equals, and
where nobody says what states are worth, the least recently used one. A tenant beyond
its own budget displaces nobody else's states. Putting in and taking out take time in
proportion to the state's segments, displacing also to the number of states.

    >>> from .state import KVState
    >>> shelf = Shelf(budget_bytes=8)
    >>> for key in "ab":
    ...     state = KVState.seal(
    ...         key=f"tenant/{key}",
    ...         model="m",
    ...         engine="e",
    ...         layout="r",
    ...         token_ids=[1],
    ...         payload=b"equal",
    ...     )
    ...     _ = shelf.add(state.manifest)
    >>> shelf.states, shelf.stored_bytes
    (2, 5)
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .errors import StateMissing, StoreFull
from .keys import tenant_of
from .state import KVState, Manifest, Payload, Segment, checksum
from .store import Owner, StoreStat

Place = tuple[str, str]
"""Where a segment is kept: whose it is, and the address of its content."""

TenantBudget = int | Mapping[str, int] | None
"""Bytes for every tenant alike, or for those named; None and unnamed: no limit."""


def places_of(manifest: Manifest) -> tuple[Place, ...]:
    """Return the place of each segment of a state; equal segments have the same."""
    tenant = tenant_of(manifest.key)
    return tuple((tenant, segment.address) for segment in manifest.segments)


def wrong_places(state: KVState) -> tuple[Place, ...]:
    """Return the places whose payloads are not what the manifest says."""
    return tuple(
        place
        for place, segment, payload in zip(
            places_of(state.manifest),
            state.manifest.segments,
            state.payloads,
            strict=True,
        )
        if not _is_right(segment, payload)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a change of the books asks of the tier.

    Bytes of ``new`` places must be kept from now on, those of ``freed`` ones are of no
    state any more. ``evicted`` are the keys that had to leave.
    """

    new: tuple[Place, ...] = ()
    freed: tuple[Place, ...] = ()
    evicted: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class _Entry:
    """A state; ``own_bytes`` is what would be free without it."""

    manifest: Manifest
    tenant: str
    sizes: dict[Place, int]
    unstored_bytes: int
    own_bytes: int = 0

    @classmethod
    def of(cls, manifest: Manifest) -> "_Entry":
        return cls(
            manifest=manifest,
            tenant=tenant_of(manifest.key),
            sizes={
                place: segment.length_bytes
                for place, segment in zip(
                    places_of(manifest), manifest.segments, strict=True
                )
            },
            unstored_bytes=max(0, manifest.kv_bytes - manifest.length_bytes),
        )

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes.values()) + self.unstored_bytes


class Shelf:
    """Keeps the books of one tier; ``budget_bytes`` None means no limit."""

    def __init__(
        self, budget_bytes: int | None = None, tenant_budget_bytes: TenantBudget = None
    ) -> None:
        self.budget_bytes = budget_bytes
        self._tenant_budget_bytes = tenant_budget_bytes
        # In order of use, the least recent first.
        self._entries: dict[str, _Entry] = {}
        self._sharers: dict[Place, set[_Entry]] = {}
        self._tenants_bytes: dict[str, int] = {}
        self.stored_bytes = 0
        self.evictions = 0
        self.owner: Owner | None = None

    def stat(self, tier: str, refused: Mapping[str, int]) -> StoreStat:
        """Return how full the store is that these are the books of."""
        return StoreStat(
            states=self.states,
            stored_bytes=self.stored_bytes,
            budget_bytes=self.budget_bytes,
            evictions=self.evictions,
            tier=tier,
            refused=dict(refused),
        )

    @property
    def states(self) -> int:
        """How many states are kept."""
        return len(self._entries)

    def __contains__(self, place: Place) -> bool:
        """Return whether a state has a segment there."""
        return place in self._sharers

    def __iter__(self) -> Iterator[str]:
        """Yield the keys in order of use, the least recent first."""
        return iter(self._entries)

    def tenant_bytes(self, tenant: str) -> int:
        """Return what the states of *tenant* take."""
        return self._tenants_bytes.get(tenant, 0)

    def get(self, key: str) -> Manifest:
        """Return what the key holds; raise StateMissing."""
        entry = self._entries.get(key)
        if entry is None:
            raise StateMissing(f"no state is parked under {key!r}")
        return entry.manifest

    def holds(self, manifest: Manifest) -> bool:
        """Return whether it is still this very state that its key holds."""
        entry = self._entries.get(manifest.key)
        return entry is not None and entry.manifest is manifest

    def whole(self, manifest: Manifest) -> Manifest:
        """Return *manifest* behind what its key holds, if that is what it continues.

        Raises StateMissing if it is not; a state from token 0 on continues nothing.
        """
        if not manifest.first_token:
            return manifest
        entry = self._entries.get(manifest.key)
        if entry is None or not manifest.continues(entry.manifest):
            raise StateMissing(
                f"what comes before token {manifest.first_token} of state "
                f"{manifest.key!r} is not parked here"
            )
        return manifest.behind(entry.manifest)

    def check(self, manifest: Manifest) -> None:
        """Raise StoreFull if the state does not even fit with all others gone."""
        self._check(_Entry.of(manifest))

    def add(self, manifest: Manifest) -> Change:
        """Put a whole state under its key, in place of what that holds.

        Others leave where the budgets want it. Raises StoreFull, with nothing changed.
        """
        entry = _Entry.of(manifest)
        self._check(entry)
        # Before anything leaves: what the state shares with that is not freed.
        new = self._enter(entry)
        freed = self.remove(manifest.key).freed
        self._entries[manifest.key] = entry
        room = self._make_room(entry)
        return Change(new=new, freed=freed + room.freed, evicted=room.evicted)

    def use(self, key: str) -> None:
        """Make the state the most recently used one."""
        self._entries[key] = self._entries.pop(key)

    def remove(self, key: str) -> Change:
        """Take the key's state out; taking out what isn't there changes nothing."""
        entry = self._entries.pop(key, None)
        return Change(freed=self._leave(entry) if entry else ())

    def condemn(self, places: Iterable[Place]) -> Change:
        """Take out every state that has a segment there, as ``evicted``.

        For bytes that are found to be wrong: they are wrong for all who share them,
        and nobody may come to share them from now on.
        """
        condemned = {
            entry.manifest.key
            for place in places
            for entry in self._sharers.get(place, ())
        }
        keys = tuple(key for key in self._entries if key in condemned)
        freed = [place for key in keys for place in self.remove(key).freed]
        return Change(freed=tuple(freed), evicted=keys)

    def clear(self) -> None:
        """Take everything out."""
        self._entries.clear()
        self._sharers.clear()
        self._tenants_bytes.clear()
        self.stored_bytes = 0

    def _check(self, entry: _Entry) -> None:
        for limit_bytes, whose in (
            (self.budget_bytes, ""),
            (self._tenant_limit_bytes(entry.tenant), f" of tenant {entry.tenant!r}"),
        ):
            if _over(entry.total_bytes, limit_bytes):
                raise StoreFull(
                    f"state {entry.manifest.key!r} has {entry.total_bytes:,} bytes, "
                    f"the store takes {limit_bytes:,}{whose}"
                )

    def _tenant_limit_bytes(self, tenant: str) -> int | None:
        limit = self._tenant_budget_bytes
        return limit.get(tenant) if isinstance(limit, Mapping) else limit

    def _enter(self, entry: _Entry) -> tuple[Place, ...]:
        new: list[Place] = []
        for place, size in entry.sizes.items():
            sharers = self._sharers.setdefault(place, set())
            if not sharers:
                new.append(place)
                entry.own_bytes += size
            elif len(sharers) == 1:
                next(iter(sharers)).own_bytes -= size
            sharers.add(entry)
        entry.own_bytes += entry.unstored_bytes
        self._count(entry.tenant, entry.own_bytes)
        return tuple(new)

    def _leave(self, entry: _Entry) -> tuple[Place, ...]:
        freed: list[Place] = []
        for place, size in entry.sizes.items():
            sharers = self._sharers[place]
            sharers.remove(entry)
            if not sharers:
                del self._sharers[place]
                freed.append(place)
            elif len(sharers) == 1:
                next(iter(sharers)).own_bytes += size
        self._count(entry.tenant, -entry.own_bytes)
        return tuple(freed)

    def _count(self, tenant: str, change_bytes: int) -> None:
        self.stored_bytes += change_bytes
        left_bytes = self._tenants_bytes.get(tenant, 0) + change_bytes
        self._tenants_bytes[tenant] = left_bytes
        if not left_bytes:
            del self._tenants_bytes[tenant]

    def _make_room(self, newcomer: _Entry) -> Change:
        tenant = newcomer.tenant
        tenant_limit_bytes = self._tenant_limit_bytes(tenant)
        worths_s: dict[str, float] = {}
        evicted: list[str] = []
        freed: list[Place] = []
        while True:
            if _over(self.tenant_bytes(tenant), tenant_limit_bytes):
                victim = self._victim(newcomer, tenant, worths_s)
            elif _over(self.stored_bytes, self.budget_bytes):
                victim = self._victim(newcomer, None, worths_s)
            else:
                return Change(freed=tuple(freed), evicted=tuple(evicted))
            evicted.append(victim)
            freed.extend(self.remove(victim).freed)
            self.evictions += 1

    def _victim(
        self, newcomer: _Entry, tenant: str | None, worths_s: dict[str, float]
    ) -> str:
        others = (
            entry
            for entry in self._entries.values()
            if entry is not newcomer and tenant in (None, entry.tenant)
        )
        if (owner := self.owner) is None:
            return next(others).manifest.key

        def worth_per_byte(entry: _Entry) -> float:
            key = entry.manifest.key
            if key not in worths_s:
                worths_s[key] = owner.worth_s(entry.manifest)
            return _worth_per_byte(worths_s[key], entry.own_bytes)

        # min takes the first of equals, which is the least recently used one.
        return min(others, key=worth_per_byte).manifest.key


def _is_right(segment: Segment, payload: Payload) -> bool:
    return (
        len(payload) == segment.length_bytes and checksum(payload) == segment.checksum
    )


def _over(nbytes: int, limit_bytes: int | None) -> bool:
    return limit_bytes is not None and nbytes > limit_bytes


def _worth_per_byte(worth_s: float, own_bytes: int) -> float:
    """What is worth nothing leaves first, what would free nothing leaves last."""
    if worth_s <= 0:
        return 0.0
    return worth_s / own_bytes if own_bytes else float("inf")
