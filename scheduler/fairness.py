"""Least attained service: what each tenant has had, and a heap that orders by it.

An account is in accelerator seconds divided by the tenant's weight at the time, so who
has weight 2 may have twice the seconds before it counts as much, and a change of weight
re-values nothing of the past. A tenant that asks for nothing is owed nothing: when it
comes back, its account is raised to the least of those that wait and of the one that
waited last. (The virtual token counter of Sheng et al., "Fairness in Serving Large
Language Models", OSDI 2024, lifts to the least of those that wait. Whoever waited last
may be back at once, and would lose by that what its weight entitles it to.)

    >>> service = Service()
    >>> service.enter("busy")
    >>> service.charge("busy", service_s=6.0, weight=2.0)
    >>> service.attained_s("busy"), service.attained_s("idle for a month")
    (3.0, 3.0)
"""

import heapq
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

from .errors import InvalidSetting

Item = TypeVar("Item", bound=Hashable)

# Idle accounts are looked through for forgettable ones only beyond this many: a tenant
# whose turns all run looks idle too, and its account should outlast them.
_ACCOUNTS_KEPT = 4096
_DEAD_PLACES_KEPT = 16


class KeyedHeap(Generic[Item]):
    """A heap whose members may leave, or change their key; all in O(log n) amortised.

    Invariant: ``_places`` has the valid place of every member. ``_heap`` holds these
    and the places that are valid no longer, which are never more than the members and
    a constant: those that surface are dropped, and all together when they get too many.
    """

    def __init__(self) -> None:
        self._places: dict[Item, tuple[tuple[float, ...], int, Item]] = {}
        self._heap: list[tuple[tuple[float, ...], int, Item]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def places(self) -> int:
        """How many places are kept, those that are valid no longer included."""
        return len(self._heap)

    def put(self, item: Item, key: tuple[float, ...]) -> None:
        """Add *item*, or change its key; equal keys surface in the order of put."""
        self._number += 1
        place = (key, self._number, item)
        self._places[item] = place
        heapq.heappush(self._heap, place)
        self._trim()

    def discard(self, item: Item) -> None:
        """Take *item* out if it is in."""
        if self._places.pop(item, None) is not None:
            self._trim()

    def key(self, item: Item) -> tuple[float, ...]:
        """Return the key of a member."""
        return self._places[item][0]

    def first(self) -> Item | None:
        """Return the member with the lowest key, or None."""
        while self._heap:
            place = self._heap[0]
            if self._places.get(place[2]) is place:
                return place[2]
            heapq.heappop(self._heap)
        return None

    def smallest(self, most: int) -> list[Item]:
        """Return up to *most* members, the lowest keys first, in O(most log most).

        Walks down from the root; of the places that are valid no longer it looks at no
        more than *most* either, so the result may be short.
        """
        found: list[Item] = []
        edge = [(self._heap[0], 0)] if self._heap else []
        for _ in range(2 * most):
            if not edge or len(found) == most:
                break
            place, index = heapq.heappop(edge)
            if self._places.get(place[2]) is place:
                found.append(place[2])
            for below in (2 * index + 1, 2 * index + 2):
                if below < len(self._heap):
                    heapq.heappush(edge, (self._heap[below], below))
        return found

    def _trim(self) -> None:
        if len(self._heap) > 2 * len(self._places) + _DEAD_PLACES_KEPT:
            self._heap = list(self._places.values())
            heapq.heapify(self._heap)


class Service:
    """Accounts of tenants; each operation costs O(log n) amortised.

    Invariant: no tenant's ``attained_s`` ever falls. The floor, to which accounts are
    raised, cannot: charges only add, who enters is not below it, and who leaves was one
    of those above it. So idle accounts under it say nothing and may be forgotten.
    """

    def __init__(self) -> None:
        self._accounts_s: dict[str, float] = {}
        self._turns_waiting: dict[str, int] = {}
        self._waiting: KeyedHeap[str] = KeyedHeap()
        self._left_last: str | None = None
        self._look_through_at = _ACCOUNTS_KEPT

    @property
    def accounts(self) -> int:
        """How many accounts are kept."""
        return len(self._accounts_s)

    def attained_s(self, tenant: str) -> float:
        """Return accelerator seconds ÷ weight, as they count if it waits, or came."""
        if tenant in self._turns_waiting:
            return self._accounts_s[tenant]
        return max(self._accounts_s.get(tenant, 0.0), self._floor_s())

    def charge(self, tenant: str, *, service_s: float, weight: float = 1.0) -> None:
        """Book accelerator seconds that a turn has had; raise InvalidSetting.

        A turn that is admitted waits no longer, and is charged all the same.
        """
        if not (math.isfinite(weight) and weight > 0):
            raise InvalidSetting(
                f"the weight of tenant {tenant!r} must be positive and finite, "
                f"not {weight}"
            )
        if not (math.isfinite(service_s) and service_s >= 0):
            raise InvalidSetting(
                f"service_s of tenant {tenant!r} must be finite and not negative, "
                f"got {service_s}"
            )
        account_s = self._accounts_s.get(tenant)
        if account_s is None:
            account_s = self._floor_s()
        self._book(tenant, account_s + service_s / weight)

    def enter(self, tenant: str) -> None:
        """Note that a turn of *tenant* begins to wait."""
        turns = self._turns_waiting.get(tenant, 0)
        account_s = self.attained_s(tenant)
        self._turns_waiting[tenant] = turns + 1
        if not turns:
            self._book(tenant, account_s)

    def leave(self, tenant: str) -> None:
        """Note that a turn of *tenant* waits no longer; it must have entered."""
        self._left_last = tenant
        turns = self._turns_waiting[tenant] - 1
        if turns:
            self._turns_waiting[tenant] = turns
        else:
            del self._turns_waiting[tenant]
            self._waiting.discard(tenant)

    def _book(self, tenant: str, account_s: float) -> None:
        self._accounts_s[tenant] = account_s
        if tenant in self._turns_waiting:
            self._waiting.put(tenant, (account_s,))
        if len(self._accounts_s) > self._look_through_at:
            self._forget_idle()

    def _floor_s(self) -> float:
        accounts_s = self._accounts_s
        tenants = (self._waiting.first(), self._left_last)
        return min(
            (accounts_s[tenant] for tenant in tenants if tenant is not None),
            default=0.0,
        )

    def _forget_idle(self) -> None:
        floor_s = self._floor_s()
        self._accounts_s = {
            tenant: account_s
            for tenant, account_s in self._accounts_s.items()
            if account_s > floor_s
            or tenant in self._turns_waiting
            or tenant == self._left_last
        }
        # Twice what is left, so that looking through stays O(1) per booking.
        self._look_through_at = max(_ACCOUNTS_KEPT, 2 * len(self._accounts_s))
