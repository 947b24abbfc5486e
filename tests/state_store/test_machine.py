"""Random histories of every store: whatever is done to it, the contract holds."""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvalet.state_store import (
    BLOCK_TOKENS,
    KVState,
    Manifest,
    Receipt,
    StateCorrupt,
    StateMissing,
    StoreFull,
    hash_token_ids,
    tenant_of,
)
from kvalet.state_store.shelf import Place, places_of

from .harness import STORES, Harness, Kind, Limits
from .states import copy_of, make_rows

KIB = 1024
BUDGET_BYTES = 1024 * KIB
TENANT_BUDGET_BYTES = 400 * KIB

Result = TypeVar("Result")

keys = st.sampled_from(["t/a", "t/b", "t/c", "u/a", "u/b", "loose"])


def make_text(blocks: list[int], tail: int) -> list[int]:
    """Return token ids: a block of each number, and a few more."""
    return [token for token in blocks for _ in range(BLOCK_TOKENS)] + tail * [7]


# Few different blocks, so that much is alike: between states, and within one.
texts = st.builds(make_text, st.lists(st.integers(0, 2), max_size=3), st.integers(1, 3))
# Of the loop, until a call is cancelled; a thread needs many.
steps = st.sampled_from([0, 1, 2, 3, 5, 20, 60, 100, 150, 300])
sizes = st.sampled_from([0, 0, 1, 100 * KIB, 300 * KIB])
limits = st.sampled_from(
    [
        Limits(),
        Limits(budget_bytes=BUDGET_BYTES),
        Limits(budget_bytes=BUDGET_BYTES, tenant_budget_bytes=TENANT_BUDGET_BYTES),
        Limits(tenant_budget_bytes={"t": TENANT_BUDGET_BYTES, "nobody": 1}),
    ]
)


class Witness:
    """An owner that hears what is lost; what states are worth is by their keys."""

    def __init__(self) -> None:
        self.lost_keys: list[str] = []

    def lost(self, key: str) -> None:
        self.lost_keys.append(key)

    def moved(self, key: str, tier: str) -> None:
        pass

    def worth_s(self, manifest: Manifest) -> float:
        return sum(manifest.key.encode()) % 5


class StoreMachine(RuleBasedStateMachine):
    """A store, and a dictionary of what it must hold.

    What is drawn does not depend on what was cancelled in time: that may differ when a
    history is repeated.
    """

    kind: Kind

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.harness: Harness
        self.limits = Limits()
        self.owned = False
        self.witness = Witness()
        self.states: dict[str, KVState] = {}
        self.texts: dict[str, list[int]] = {}
        self.damaged: set[Place] = set()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    @initialize(limits=limits, owned=st.booleans())
    def open(self, limits: Limits, owned: bool) -> None:
        self.limits = limits if self.kind.has_budget else Limits()
        opening = self.kind.open(self.limits)
        self.harness = self.run(self.stack.enter_async_context(opening))
        self.owned = owned
        if owned:
            self.harness.store.serve(self.witness)

    # What is done to it.

    @rule(key=keys, text=texts, unstored_bytes=sizes)
    def park(self, key: str, text: list[int], unstored_bytes: int) -> None:
        self._park(make_rows(key, text, unstored_bytes=unstored_bytes), text)

    @rule(key=keys, more=texts, unstored_bytes=sizes)
    def park_the_rest(self, key: str, more: list[int], unstored_bytes: int) -> None:
        before = self.texts.get(key, [1])
        text = before + more
        rest = make_rows(key, text, len(before), unstored_bytes=unstored_bytes)
        if key in self.states:
            self._park(rest, text)
        else:
            self._refuse_the_rest(rest)

    @rule(key=keys, more=texts, other=st.sampled_from(["text", "length", "model"]))
    def park_a_wrong_rest(self, key: str, more: list[int], other: str) -> None:
        before = self.texts.get(key, [1])
        first_token = len(before) + (other == "length")
        start = [9, *before[1:]] if other == "text" else before
        model = "another" if other == "model" else "model"
        text = [*start, 5, *more]
        self._refuse_the_rest(make_rows(key, text, first_token, model=model))

    @rule(key=keys)
    def fetch(self, key: str) -> None:
        if key not in self.states:
            with pytest.raises(StateMissing):
                self.run(self.harness.store.fetch(key))
            return
        wrong = self.damaged.intersection(places_of(self.states[key].manifest))
        try:
            state, receipt = self.run(self.harness.store.fetch(key))
        except (StateCorrupt, StateMissing):
            assert wrong
            self._forget([key])
            self._hear()
        else:
            assert state == self.states[key]
            assert receipt.nbytes == state.manifest.kv_bytes

    @rule(key=keys)
    def find(self, key: str) -> None:
        if key in self.states:
            found = self.run(self.harness.store.find(key))
            assert found == self.states[key].manifest
        else:
            with pytest.raises(StateMissing):
                self.run(self.harness.store.find(key))

    @rule(key=keys)
    def drop(self, key: str) -> None:
        self.run(self.harness.store.drop(key))
        self._forget([key])

    @rule(key=keys, segment=st.integers(0, 9))
    def corrupt(self, key: str, segment: int) -> None:
        places = self._places(key)
        if places and self.damaged.isdisjoint(places):
            segment %= len(places)
            self.run(self.harness.corrupt(key, segment))
            self.damaged.add(places[segment])

    @rule(key=keys, text=texts, unstored_bytes=sizes, steps=steps)
    def cancel_a_park(
        self, key: str, text: list[int], unstored_bytes: int, steps: int
    ) -> None:
        state = make_rows(key, text, unstored_bytes=unstored_bytes)
        if self._exceeds(state):
            return
        expected = copy_of(state)
        receipt = self.run(_cancelled(self.harness.store.park(state), steps))
        self._forget(receipt.evicted if receipt else ())
        self._hear()
        if self._found(key) == expected.manifest:
            self._remember(expected, text)

    @rule(key=keys, steps=steps)
    def cancel_a_fetch(self, key: str, steps: int) -> None:
        places = self._places(key)
        if places and self.damaged.isdisjoint(places):
            self.run(_cancelled(self.harness.store.fetch(key), steps))

    @rule(key=keys, steps=steps)
    def cancel_a_drop(self, key: str, steps: int) -> None:
        self.run(_cancelled(self.harness.store.drop(key), steps))
        if self._found(key) is None:
            self._forget([key])

    @rule(text=texts, unstored_bytes=sizes, drops=st.sets(keys))
    def side_by_side(
        self, text: list[int], unstored_bytes: int, drops: set[str]
    ) -> None:
        """Park equal rows under several keys, and drop others, at the same time."""
        parks = sorted({"t/a", "t/b", "u/a", "loose"} - drops)
        states = [make_rows(key, text, unstored_bytes=unstored_bytes) for key in parks]
        if any(self._exceeds(state) for state in states):
            return
        copies = [copy_of(state) for state in states]

        async def work() -> list[Receipt]:
            dropping = [self.harness.store.drop(key) for key in sorted(drops)]
            parking = [self.harness.store.park(state) for state in states]
            receipts, _ = await asyncio.gather(
                asyncio.gather(*parking), asyncio.gather(*dropping)
            )
            return receipts

        receipts = self.run(work())
        displaced = {key for receipt in receipts for key in receipt.evicted}
        # In this order: what was damaged may have been in use all the time.
        for state in copies:
            self._remember(state, text)
        self._forget(drops)
        gone = set(self.states) - self._keys()
        assert gone <= displaced
        self._forget(gone)

    @rule()
    def reopen(self) -> None:
        self.run(self.harness.reopen())
        self.owned = False
        if not self.kind.survives:
            self._forget(list(self.states))

    # What holds after each step.

    @invariant()
    def holds_what_it_must(self) -> None:
        assert self._keys() == set(self.states)

    @invariant()
    def tells_no_tales(self) -> None:
        """Only what a call says is not told to the owner as well."""
        assert not self.witness.lost_keys

    @invariant()
    def counts_right(self) -> None:
        if not self.kind.has_budget:
            return
        stat = self.run(self.harness.store.stat())
        assert stat.states == len(self.states)
        assert stat.stored_bytes == self._bytes_of(self.states)
        assert stat.stored_bytes <= (self.limits.budget_bytes or stat.stored_bytes)
        for tenant in {tenant_of(key) for key in self.states}:
            own = [key for key in self.states if tenant_of(key) == tenant]
            limit_bytes = self._tenant_limit_bytes(tenant)
            assert limit_bytes is None or self._bytes_of(own) <= limit_bytes

    @invariant()
    def leaves_nothing_behind(self) -> None:
        if not self.states:
            assert not self.run(self.harness.leftovers())

    def teardown(self) -> None:
        try:
            if hasattr(self, "harness"):
                for key in list(self.states):
                    self.drop(key)
                self.leaves_nothing_behind()
                self.counts_right()
        finally:
            self.run(self.stack.aclose())
            self.runner.close()

    # The model.

    def _park(self, state: KVState, text: list[int]) -> None:
        expected = copy_of(state)
        if state.manifest.first_token:
            expected = expected.behind(self.states[state.manifest.key])
        assert expected.manifest.token_hash == hash_token_ids(text)
        if self._exceeds(expected):
            with pytest.raises(StoreFull):
                self.run(self.harness.store.park(state))
            return
        receipt = self.run(self.harness.store.park(state))
        assert receipt.nbytes == state.manifest.kv_bytes
        assert set(receipt.evicted) <= set(self.states) - {state.manifest.key}
        self._forget(receipt.evicted)
        self._remember(expected, text)

    def _refuse_the_rest(self, rest: KVState) -> None:
        with pytest.raises(StateMissing):
            self.run(self.harness.store.park(rest))

    def _remember(self, state: KVState, text: list[int]) -> None:
        self.states[state.manifest.key] = state
        self.texts[state.manifest.key] = text
        self._heal()

    def _forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.states.pop(key, None)
            self.texts.pop(key, None)
        self._heal()

    def _heal(self) -> None:
        """Damage goes with the last state that has it."""
        self.damaged &= {
            place
            for state in self.states.values()
            for place in places_of(state.manifest)
        }

    def _hear(self) -> None:
        """Take note of what the owner was told, which may be told once only."""
        heard, self.witness.lost_keys = self.witness.lost_keys, []
        assert len(set(heard)) == len(heard)
        assert set(heard) <= set(self.states)
        self._forget(heard)
        if not self.owned:
            self._forget(set(self.states) - self._keys())

    def _places(self, key: str) -> tuple[Place, ...]:
        state = self.states.get(key)
        return places_of(state.manifest) if state else ()

    def _keys(self) -> set[str]:
        async def collect() -> set[str]:
            keys = self.harness.store.keys()
            return {key async for key in keys}

        return self.run(collect())

    def _found(self, key: str) -> Manifest | None:
        try:
            return self.run(self.harness.store.find(key))
        except StateMissing:
            return None

    def _tenant_limit_bytes(self, tenant: str) -> int | None:
        limit = self.limits.tenant_budget_bytes
        return limit if limit is None or isinstance(limit, int) else limit.get(tenant)

    def _exceeds(self, state: KVState) -> bool:
        key = state.manifest.key
        nbytes = _bytes_of([state.manifest])
        limits = self.limits.budget_bytes, self._tenant_limit_bytes(tenant_of(key))
        return any(limit is not None and nbytes > limit for limit in limits)

    def _bytes_of(self, keys: Iterable[str]) -> int:
        return _bytes_of([self.states[key].manifest for key in keys])


def _bytes_of(manifests: list[Manifest]) -> int:
    sizes = {
        place: segment.length_bytes
        for manifest in manifests
        for place, segment in zip(places_of(manifest), manifest.segments, strict=True)
    }
    unstored = [manifest.kv_bytes - manifest.length_bytes for manifest in manifests]
    return sum(sizes.values()) + sum(unstored)


async def _cancelled(work: Coroutine[Any, Any, Result], steps: int) -> Result | None:
    """Cancel *work* after some steps of the loop, and return what it got done."""
    task = asyncio.create_task(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


@pytest.mark.parametrize("name", STORES)
def test_any_history(name: str) -> None:
    """A store returns what was parked or raises, counts right, and forgets wholly."""

    class Machine(StoreMachine):
        kind = STORES[name]

    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=60, stateful_step_count=30, deadline=None),
    )
