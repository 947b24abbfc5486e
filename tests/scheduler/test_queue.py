"""The order of admission: urgency, priority, rank, fairness; and nobody starves."""

import math
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvalet.scheduler.errors import IllegalMove, InvalidSetting
from kvalet.scheduler.events import SessionId
from kvalet.scheduler.fairness import KeyedHeap, Service
from kvalet.scheduler.queue import AdmissionQueue, Claim, Head, Rank


def claim(
    name: str,
    rank: Rank = Rank.NEW,
    submitted_s: float = 0,
    *,
    tenant: str = "",
    priority: int = 0,
    due_s: float | None = None,
    attained_s: float = 0,
) -> Claim:
    return Claim(
        session=SessionId(name),
        rank=rank,
        submitted_s=submitted_s,
        tenant=tenant,
        priority=priority,
        due_s=due_s,
        attained_s=attained_s,
    )


def queue_of(*claims: Claim, age_bound_s: float = 60) -> AdmissionQueue:
    queue = AdmissionQueue(age_bound_s=age_bound_s)
    for each in claims:
        queue.push(each)
    return queue


def drain(queue: AdmissionQueue, now_s: float) -> str:
    order = ""
    while (head := queue.head(now_s)) is not None:
        order += head.session
        queue.remove(head.session)
    return order


def test_resident_then_returning_then_new() -> None:
    """Rank decides, and within a rank the order of submission."""
    queue = queue_of(
        claim("a", Rank.NEW),
        claim("b", Rank.RETURNING),
        claim("c", Rank.RESIDENT),
        claim("d", Rank.NEW),
    )
    assert drain(queue, 4) == "cbad"


def test_priority_goes_before_rank() -> None:
    """A higher priority goes first, whatever its rank."""
    queue = queue_of(
        claim("a", Rank.RESIDENT, priority=-1),
        claim("b", Rank.RESIDENT),
        claim("c", Rank.NEW, priority=7),
    )
    assert drain(queue, 0) == "cba"


def test_rank_goes_before_fairness() -> None:
    """A resident turn of a tenant that has had much goes before a new one of others."""
    service = Service()
    queue = AdmissionQueue(age_bound_s=60, service=service)
    queue.push(claim("a", Rank.NEW, tenant="light"))
    queue.push(claim("b", Rank.RESIDENT, tenant="heavy"))
    queue.push(claim("c", Rank.RESIDENT, tenant="light"))
    service.charge("heavy", service_s=100)
    assert drain(queue, 0) == "cba"


def test_the_least_attained_session_of_a_tenant_goes_first() -> None:
    """Within a tenant what the session has had decides, then the order of arrival."""
    queue = queue_of(
        claim("a", attained_s=2), claim("b", attained_s=1), claim("c", attained_s=1)
    )
    assert drain(queue, 0) == "bca"


def test_a_late_arrival_may_bring_its_tenant_forward() -> None:
    """Between tenants that are level, the session that has had least goes first."""
    queue = queue_of(
        claim("a", tenant="x", attained_s=2),
        claim("b", tenant="y", attained_s=1),
        claim("c", tenant="x", attained_s=0),
    )
    assert drain(queue, 0) == "cba"


def test_age_goes_before_rank_and_priority() -> None:
    """A turn past the age bound is the head, and is called forced."""
    a, b = claim("a", Rank.NEW), claim("b", Rank.RESIDENT, 5, priority=3)
    queue = queue_of(a, b, age_bound_s=10)
    assert queue.next_urgent_s() == 10
    assert queue.head(9.9) == Head(b.session, False)
    assert queue.head(10) == Head(a.session, True)


def test_a_deadline_goes_before_age() -> None:
    """Of urgent turns the one that became so first is the head, by age or deadline."""
    queue = queue_of(
        claim("a", Rank.NEW, 0),
        claim("b", Rank.NEW, 1, due_s=9),
        claim("c", Rank.RESIDENT, 2),
        age_bound_s=10,
    )
    assert queue.next_urgent_s() == 9
    assert queue.head(8) == Head(SessionId("c"), False)
    assert drain(queue, 50) == "bac"


def test_a_deadline_in_the_past_passes_nobody_who_is_urgent_already() -> None:
    """Nobody becomes urgent before it came, so urgent turns cannot be overtaken."""
    queue = queue_of(claim("a", Rank.NEW, 0), age_bound_s=10)
    queue.push(claim("b", Rank.RESIDENT, 11, priority=1, due_s=-1e9))
    assert drain(queue, 11) == "ab"


def test_whom_the_order_puts_first_is_never_forced() -> None:
    """Age forces nothing where the oldest turn would be next anyway."""
    queue = queue_of(claim("a"), age_bound_s=10)
    assert queue.head(1000) == Head(SessionId("a"), False)
    assert queue.next_urgent_s() is None


def test_the_age_bound_may_change_at_any_time() -> None:
    """A new bound counts for turns that wait already; an infinite one forces nobody."""
    a, b = claim("a", Rank.NEW, 0), claim("b", Rank.RESIDENT, 1)
    queue = queue_of(a, b, age_bound_s=math.inf)
    assert queue.next_urgent_s() is None
    assert queue.head(1e12) == Head(b.session, False)
    queue.age_bound_s = 5
    assert queue.next_urgent_s() == 5
    assert queue.head(5) == Head(a.session, True)


def test_a_new_rank_keeps_the_age() -> None:
    """Ranks may change both ways while a turn waits; it stays in its place in line."""
    queue = queue_of(*map(claim, "abc"))
    a, b = SessionId("a"), SessionId("b")
    queue.rerank(b, Rank.RESIDENT)
    queue.rerank(a, Rank.RESIDENT)
    queue.rerank(b, Rank.NEW)
    queue.rerank(b, Rank.RESIDENT)
    assert [queue.count(rank) for rank in Rank] == [2, 0, 1]
    assert list(queue.youngest_residents()) == ["b", "a"]
    assert drain(queue, 0) == "abc"


def test_a_session_may_come_again() -> None:
    """What is left of an earlier turn never surfaces as the later one."""
    queue = queue_of(claim("a", Rank.RESIDENT, due_s=1))
    queue.remove(SessionId("a"))
    queue.push(claim("b", Rank.RETURNING, 1))
    queue.push(claim("a", Rank.NEW, 2))
    assert queue.oldest_submitted_s() == 1
    assert drain(queue, 3) == "ba"
    assert queue.oldest_submitted_s() is None


def test_a_session_waits_once() -> None:
    """A second turn of a session is refused; so is to move or take out what isn't."""
    queue = queue_of(claim("a"))
    with pytest.raises(IllegalMove, match="session 'a' has a turn waiting already"):
        queue.push(claim("a"))
    with pytest.raises(IllegalMove, match="session 'b' has no turn waiting"):
        queue.remove(SessionId("b"))
    with pytest.raises(IllegalMove, match="session 'b' has no turn waiting"):
        queue.rerank(SessionId("b"), Rank.NEW)


def test_nonsense_is_refused_with_its_value() -> None:
    """What would put a heap out of order never enters one."""
    not_an_integer: Any = math.nan
    with pytest.raises(InvalidSetting, match=r"priority .* 'a' .* integer, not nan"):
        claim("a", priority=not_an_integer)
    with pytest.raises(InvalidSetting, match=r"submitted_s .* must be finite, not inf"):
        claim("a", submitted_s=math.inf)
    with pytest.raises(InvalidSetting, match=r"due_s .* must be finite, not inf"):
        claim("a", due_s=math.inf)
    with pytest.raises(InvalidSetting, match=r"attained_s .* must be finite, not nan"):
        claim("a", attained_s=math.nan)
    for bound_s in (-1, math.nan):
        with pytest.raises(InvalidSetting, match="age_bound_s must not be negative"):
            AdmissionQueue(age_bound_s=bound_s)
    for weight in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidSetting, match=rf"positive and finite, not {weight}"):
            Service().charge("t", service_s=1, weight=weight)
    for service_s in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidSetting, match=f"not negative, got {service_s}"):
            Service().charge("t", service_s=service_s)


# ---- fairness ------------------------------------------------------------------------


@given(st.lists(st.integers(1, 8), min_size=2, max_size=5))
@settings(max_examples=50, deadline=None)
def test_admissions_are_in_proportion_to_weights(weights: list[int]) -> None:
    """With work always waiting, a tenant of weight 2 is admitted twice as often as one
    of weight 1: no two accounts ever differ by more than one turn."""
    service = Service()
    queue = AdmissionQueue(age_bound_s=math.inf, service=service)
    tenants = {f"{turn}{n}": f"{n}" for n in range(len(weights)) for turn in "ab"}
    for name, tenant in tenants.items():
        queue.push(claim(name, tenant=tenant))
    admitted: Counter[int] = Counter()
    for now_s in range(100 * len(weights)):
        head = queue.head(now_s)
        assert head is not None
        queue.remove(head.session)
        tenant = tenants[head.session]
        admitted[int(tenant)] += 1
        service.charge(tenant, service_s=1, weight=weights[int(tenant)])
        queue.push(claim(head.session, submitted_s=now_s, tenant=tenant))
    accounts = [admitted[number] / weight for number, weight in enumerate(weights)]
    assert max(accounts) - min(accounts) <= 1 / min(weights) + 1e-6


def test_one_turn_at_a_time_has_its_share_too() -> None:
    """A tenant that never has two turns keeps its account while its only one runs."""
    service = Service()
    queue = AdmissionQueue(age_bound_s=math.inf, service=service)
    weights = {"a": 1.0, "b": 2.0, "c": 3.0}
    for name in weights:
        queue.push(claim(name, tenant=name))
    admitted: Counter[str] = Counter()
    for now_s in range(600):
        head = queue.head(now_s)
        assert head is not None
        queue.remove(head.session)
        admitted[head.session] += 1
        service.charge(head.session, service_s=1, weight=weights[head.session])
        queue.push(claim(head.session, submitted_s=now_s, tenant=head.session))
    for name, weight in weights.items():
        assert admitted[name] == pytest.approx(100 * weight, abs=3)


def test_an_idle_tenant_hoards_no_credit() -> None:
    """Who comes back after long is level with the least served of those that wait."""
    service = Service()
    for tenant, service_s in (("busy", 500), ("busier", 900)):
        service.enter(tenant)
        service.enter(tenant)
        service.leave(tenant)
        service.charge(tenant, service_s=service_s)
    service.enter("back")
    assert service.attained_s("back") == 500


def test_use_of_an_idle_accelerator_is_no_debt() -> None:
    """What was used while nobody else waited does not count against its user."""
    service = Service()
    service.enter("a")
    service.leave("a")
    service.charge("a", service_s=500)
    service.enter("b")
    assert service.attained_s("a") == service.attained_s("b") == 500


def test_a_change_of_weight_re_values_nothing() -> None:
    """Seconds count by the weight at which they were had."""
    service = Service()
    service.enter("a")
    service.charge("a", service_s=10, weight=1)
    service.charge("a", service_s=10, weight=5)
    assert service.attained_s("a") == 12


# ---- against a sort of everything ----------------------------------------------------

ranks = st.sampled_from(list(Rank))
names = st.sampled_from([str(number) for number in range(8)])
tenants = st.sampled_from(["", "x", "y"])
moments = st.integers(-5, 40)
claims = st.builds(
    claim,
    names,
    ranks,
    tenant=tenants,
    priority=st.sampled_from([0, 0, 0, 1]),
    due_s=st.none() | st.none() | moments,
    attained_s=st.integers(0, 2),
)


class SortedModel(RuleBasedStateMachine):
    """Keeps every claim and account in plain dicts, and sorts all of them each time."""

    def __init__(self) -> None:
        super().__init__()
        self.service = Service()
        self.queue = AdmissionQueue(age_bound_s=10, service=self.service)
        self.waiting: dict[str, tuple[Claim, int]] = {}
        self.accounts_s: dict[str, float] = {}
        self.left_last: str | None = None
        self.seen_s: dict[str, float] = defaultdict(float)
        self.number = self.now_s = 0
        self.bound_s = 10

    @rule(claim=claims)
    def push(self, claim: Claim) -> None:
        if claim.session in self.waiting:
            return
        claim = replace(claim, submitted_s=self.now_s)
        self.number += 1
        self.accounts_s[claim.tenant] = self.account_s(claim.tenant)
        self.waiting[claim.session] = claim, self.number
        self.queue.push(claim)

    @rule(name=names, rank=ranks)
    def rerank(self, name: str, rank: Rank) -> None:
        if name in self.waiting:
            claim, number = self.waiting[name]
            self.waiting[name] = replace(claim, rank=rank), number
            self.queue.rerank(claim.session, rank)

    @rule(name=names)
    def remove(self, name: str) -> None:
        if name in self.waiting:
            claim, _ = self.waiting.pop(name)
            self.queue.remove(claim.session)
            self.left_last = claim.tenant

    @precondition(lambda self: self.waiting)
    @rule()
    def admit(self) -> None:
        head = self.queue.head(self.now_s)
        assert head is not None
        self.remove(head.session)

    @rule(tenant=tenants, service_s=st.integers(0, 3), weight=st.sampled_from([1, 2]))
    def charge(self, tenant: str, service_s: int, weight: int) -> None:
        if tenant in self.accounts_s:
            self.accounts_s[tenant] += service_s / weight
            self.service.charge(tenant, service_s=service_s, weight=weight)

    @rule(by_s=st.integers(0, 6))
    def advance(self, by_s: int) -> None:
        self.now_s += by_s

    @rule(bound_s=st.integers(0, 20))
    def change_bound(self, bound_s: int) -> None:
        self.queue.age_bound_s = self.bound_s = bound_s

    def account_s(self, tenant: str) -> float:
        account_s = self.accounts_s.get(tenant, 0)
        tenants = {claim.tenant for claim, _ in self.waiting.values()}
        if tenant in tenants:
            return account_s
        if self.left_last is not None:
            tenants.add(self.left_last)
        return max([account_s, min((self.accounts_s[t] for t in tenants), default=0)])

    def urgent(self, name: str) -> tuple[float, int]:
        claim, number = self.waiting[name]
        aged_s = claim.submitted_s + self.bound_s
        if claim.due_s is None:
            return aged_s, number
        return min(aged_s, max(claim.due_s, claim.submitted_s)), number

    def key(self, name: str) -> tuple[float, ...]:
        claim, number = self.waiting[name]
        return (
            -claim.priority,
            list(Rank).index(claim.rank),
            self.accounts_s[claim.tenant],
            claim.attained_s,
            number,
        )

    @invariant()
    def is_a_sort(self) -> None:
        if not self.waiting:
            assert self.queue.head(self.now_s) is None
            assert self.queue.next_urgent_s() is None
            return
        first = min(self.waiting, key=self.key)
        urgent = min(self.waiting, key=self.urgent)
        urgent_s, _ = self.urgent(urgent)
        forced = urgent != first and urgent_s <= self.now_s
        assert self.queue.head(self.now_s) == (urgent if forced else first, forced)
        assert self.queue.next_urgent_s() == (None if urgent == first else urgent_s)

    @invariant()
    def counts_agree(self) -> None:
        residents = [s for s, (c, _) in self.waiting.items() if c.rank is Rank.RESIDENT]
        assert residents[::-1] == list(self.queue.youngest_residents())
        ranks = Counter(claim.rank for claim, _ in self.waiting.values())
        assert all(self.queue.count(rank) == ranks[rank] for rank in Rank)

    @invariant()
    def accounts_agree_and_never_fall(self) -> None:
        for tenant in ("", "x", "y", "never seen"):
            attained_s = self.service.attained_s(tenant)
            assert attained_s == self.account_s(tenant) >= self.seen_s[tenant]
            self.seen_s[tenant] = attained_s


def test_it_is_a_sort() -> None:
    """Whatever comes, goes, moves and is charged, the head is the least of a sort."""
    steps = settings(max_examples=150, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(SortedModel, settings=steps)


# ---- nobody starves ------------------------------------------------------------------


@given(
    victim=claims,
    crowd=st.lists(claims, max_size=6),
    arrivals=st.lists(st.lists(claims, max_size=3), min_size=1, max_size=12),
    bound_s=st.integers(0, 8),
    charged=st.booleans(),
)
@settings(deadline=None)
def test_nobody_starves(
    victim: Claim,
    crowd: list[Claim],
    arrivals: list[list[Claim]],
    bound_s: int,
    charged: bool,
) -> None:
    """However the others claim, and however fast they come, a turn past the age bound
    waits for no more admissions than there were others waiting when it passed it."""
    service = Service()
    queue = AdmissionQueue(age_bound_s=bound_s, service=service)
    for number, each in enumerate(crowd):
        queue.push(replace(each, session=SessionId(f"crowd {number}"), submitted_s=0))
    victim = replace(victim, session=SessionId("victim"), submitted_s=0, priority=-1)
    queue.push(victim)
    number, ahead, now_s = 0, math.inf, 0
    while (head := queue.head(now_s)) is not None and head.session != "victim":
        if now_s >= bound_s:
            ahead = min(ahead, len(queue) - 1)
            assert ahead > 0
            ahead -= 1
        queue.remove(head.session)
        if charged:
            service.charge(victim.tenant, service_s=5)
        now_s += 1
        for each in arrivals[now_s % len(arrivals)]:
            number += 1
            session = SessionId(f"arrival {number}")
            queue.push(replace(each, session=session, submitted_s=now_s, priority=9))
    assert head is not None


# ---- cost and memory -----------------------------------------------------------------


def test_a_heap_keeps_no_more_dead_places_than_members() -> None:
    """Places of those that left or moved never pile up, even if none ever surfaces."""
    heap: KeyedHeap[int] = KeyedHeap()
    for number in range(10):
        heap.put(number, (number,))
    for number in range(10_000):
        heap.put(5, (5 + number % 3,))
        heap.put(number + 100, (1000,))
        heap.discard(number + 100)
    assert (heap.first(), len(heap)) == (0, 10)
    assert heap.places <= 2 * 10 + 16


def test_tenants_that_are_gone_are_forgotten() -> None:
    """A hundred thousand tenants that came once leave few accounts, and no credit."""
    service = Service()
    service.enter("stays")
    for number in range(100_000):
        service.enter(f"tenant {number}")
        service.leave(f"tenant {number}")
        service.charge(f"tenant {number}", service_s=1)
        service.charge("stays", service_s=1)
    assert service.accounts <= 4096
    assert service.attained_s("tenant 0") == service.attained_s("stays") == 100_000
    service.leave("stays")
    for number in range(10_000):
        service.enter(f"alone {number}")
        assert service.attained_s("tenant 0") == 100_000
        service.leave(f"alone {number}")
    assert service.accounts <= 4096


def test_ten_thousand_turns_are_not_looked_through() -> None:
    """With 10,000 turns of 1,000 tenants waiting, an admission touches few of them."""
    service = CountingService()
    queue = AdmissionQueue(age_bound_s=1e9, service=service)
    for number in range(10_000):
        queue.push(claim(str(number), tenant=str(number % 1000), submitted_s=number))
    service.asked = 0
    for number in range(10_000):
        head = queue.head(number)
        assert head is not None
        queue.remove(head.session)
        service.charge(str(number % 1000), service_s=1)
        queue.push(claim(head.session, tenant=str(number % 1000), submitted_s=number))
    assert service.asked <= 5 * 10_000


class CountingService(Service):
    """Counts how often it is asked what a tenant has attained."""

    asked = 0

    def attained_s(self, tenant: str) -> float:
        self.asked += 1
        return super().attained_s(tenant)
