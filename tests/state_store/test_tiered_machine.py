"""Anything may befall the tiers below: no wrong bytes, and every loss is told.

At every loss: no tier has that state. At rest, with all tiers well: what was not told
as lost is there, unless a tier has lost it without a word (as by a TTL). At the end,
with everything dropped: nothing is left in any tier, queue or book.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvalet.runtime.clock import VirtualTimeLoop
from kvalet.state_store import (
    Inventory,
    KVState,
    Manifest,
    MemoryStore,
    StateLeased,
    StateMissing,
    StoreFull,
    StoreUnavailable,
)
from kvalet.state_store.flaky import FlakyStore
from kvalet.state_store.tiered import TieredStore

from .talk import Talk

Result = TypeVar("Result")
Trouble = tuple[Exception, tuple[str, ...]]

KEYS = ("t/a", "t/b", "t/c", "u/d")
TIERS = ("host", "near", "far")
HOST_BYTES = 24
FAR_BYTES = 48
# Longer than any delay: who waits that long waits for a tier that hangs.
PATIENCE_S = 100

keys = st.sampled_from(KEYS)
texts = st.text("xyz", min_size=1, max_size=9)
numbers = st.integers(0, 1)
troubles = st.sampled_from(
    [
        (StoreUnavailable("it is away"), ("park", "fetch", "find", "drop", "keys")),
        (StateLeased("another has it"), ("park",)),
        (OSError("a bug"), ("park",)),
    ]
)


class TieredMachine(RuleBasedStateMachine):
    """Two or three tiers, the ones below in trouble now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.talks = {key: Talk(key) for key in KEYS}
        # What fetch has to return; what is not here has to be missing.
        self.kept: dict[str, KVState] = {}
        # Keys of which a tier has lost something without a word.
        self.leaky: set[str] = set()
        # Keys of which a park waits for a tier that hangs, though nobody waits for it.
        self.unsettled: set[str] = set()
        self.wrong: list[str] = []
        self.texts = 0

    @initialize(
        far=st.lists(st.sampled_from([None, FAR_BYTES]), min_size=1, max_size=2),
        queue_bytes=st.sampled_from([0, 20, 99]),
    )
    def open(self, far: list[int | None], queue_bytes: int) -> None:
        self.far_bytes = far
        self.insides = [MemoryStore(HOST_BYTES), *map(MemoryStore, far)]
        self.far = [
            FlakyStore(inside, tier=tier)
            for inside, tier in zip(self.insides[1:], TIERS[1:], strict=False)
        ]
        self.most_queued_bytes = len(far) * (queue_bytes + FAR_BYTES)
        self.store = TieredStore([self.insides[0], *self.far], queue_bytes=queue_bytes)
        self.store.serve(self)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))

    # ---- the owner -------------------------------------------------------------------

    def lost(self, key: str) -> None:
        """Hear of a loss, which has to be news."""
        if key not in self.kept and key not in self.leaky | self.unsettled:
            self.wrong.append(f"{key} was lost before")
        self.forget([key])

    def moved(self, key: str, tier: str) -> None:
        """Hear of a move, which has to be true."""
        state = self.kept.get(key)
        if state is not None and key not in self.leaky | self.unsettled:
            inside = self.insides[TIERS.index(tier)]
            if peek(inside, key) != state.manifest:
                self.wrong.append(f"{key} has not moved to {tier}")

    def worth_s(self, manifest: Manifest) -> float:
        return float(manifest.token_count % 3)

    def forget(self, lost: Iterable[str]) -> None:
        """Note what is lost; check that it is, wherever it may be."""
        for key in lost:
            state = self.kept.pop(key, None)
            held = [peek(inside, key) for inside in self.insides]
            if state and key not in self.unsettled and state.manifest in held:
                self.wrong.append(f"{key} is not lost")

    # ---- what is done to the store ---------------------------------------------------

    @rule(key=keys, text=texts, through=st.booleans(), whole=st.booleans())
    def park(self, key: str, text: str, through: bool, whole: bool) -> None:
        """Park one more turn, or all of them anew."""
        talk = self.talks[key]
        if not talk.turns or key not in self.kept or self.kept[key] != talk.whole:
            talk.turns.clear()
        talk.say(self._unlike(text))
        nbytes = talk.whole.manifest.kv_bytes
        troubled = self.is_troubled
        if nbytes > FAR_BYTES or (troubled and nbytes > HOST_BYTES):
            # Who waits for a tier that hangs can't tell what became of it.
            talk.turns.clear()
            return
        try:
            receipt = self.run(
                self.store.park(talk.whole if whole else talk.rest, through=through)
            )
        except TimeoutError:
            self.kept[key] = talk.whole
            self._settle_by_host(key)
        except StoreFull:
            talk.turns.pop()
        except (StateMissing, StoreUnavailable, StateLeased, OSError):
            known = key in self.kept and key not in self.leaky | self.unsettled
            assert troubled or not known
            talk.turns.pop()
        else:
            self.kept[key] = talk.whole
            self.leaky.discard(key)
            self.forget(receipt.evicted)

    @rule(key=keys)
    def park_again(self, key: str) -> None:
        """Park what is there already."""
        state = None if key in self.unsettled else self.kept.get(key)
        if state is not None and state.manifest.kv_bytes <= HOST_BYTES:
            receipt = self.run(self.store.park(state))
            self.forget(receipt.evicted)

    @rule(key=keys)
    def fetch(self, key: str) -> None:
        troubled = self.is_troubled
        try:
            state, _ = self.run(self.store.fetch(key))
        except StateMissing:
            self.forget([key])
        except (StoreUnavailable, TimeoutError):
            assert troubled
        else:
            state.verify()
            assert key in self.unsettled or state == self.kept[key]
            self.kept[key] = state

    @rule(key=keys)
    def find(self, key: str) -> None:
        troubled = self.is_troubled
        try:
            manifest = self.run(self.store.find(key))
        except StateMissing:
            self.forget([key])
        except (StoreUnavailable, TimeoutError):
            assert troubled
        else:
            assert key in self.unsettled or manifest == self.kept[key].manifest

    @rule(key=keys)
    def drop(self, key: str) -> None:
        troubled = self.is_troubled
        try:
            self.run(self.store.drop(key))
        except TimeoutError:
            assert troubled
        self.kept.pop(key, None)
        self.leaky.discard(key)

    @rule(key=keys, text=texts, other=keys, after_s=st.sampled_from([0, 0.3, 5]))
    def cancel(self, key: str, text: str, other: str, after_s: float) -> None:
        """Park and fetch at the same time, and stop waiting for both after a while."""
        talk = self.talks[key]
        talk.turns[:] = [self._unlike(text)]
        self.kept[key] = talk.whole
        self.unsettled.add(key)

        async def overlap() -> None:
            parking = asyncio.create_task(self.store.park(talk.whole, through=True))
            fetching = asyncio.create_task(self.store.fetch(other))
            await asyncio.sleep(after_s)
            parking.cancel()
            fetching.cancel()
            await asyncio.wait([parking, fetching])
            if not parking.cancelled():
                self.forget(parking.result().evicted)
            missing = not fetching.cancelled() and fetching.exception()
            if isinstance(missing, StateMissing) and other != key:
                self.forget([other])

        self.run(overlap())
        self.leaky.discard(key)
        if key in self.kept:
            self._settle_by_host(key)

    # ---- what befalls the tiers ------------------------------------------------------

    @rule(
        number=numbers,
        trouble=troubles,
        times=st.sampled_from([None, 1, 9]),
        acts_first=st.booleans(),
    )
    def break_down(
        self, number: int, trouble: Trouble, times: int | None, acts_first: bool
    ) -> None:
        """Let a tier fail; whom it displaces in a call that fails, it can't say."""
        number %= len(self.far)
        error, calls = trouble
        self.far[number].break_down(
            error,
            calls=calls,
            times=times,
            acts_first=acts_first and self.far_bytes[number] is None,
        )

    @rule(number=numbers)
    def hang(self, number: int) -> None:
        self.far[number % len(self.far)].hang()

    @rule(number=numbers, delay_s=st.sampled_from([0, 0.2, 3]))
    def slow_down(self, number: int, delay_s: float) -> None:
        self.far[number % len(self.far)].delay_s = delay_s

    @rule(number=numbers, key=keys)
    def leak(self, number: int, key: str) -> None:
        """Let a tier lose a state without a word."""
        self.run(self.insides[1 + number % len(self.far)].drop(key))
        self.leaky.add(key)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule()
    def heal(self) -> None:
        """Let all tiers be well and come to rest: nothing was lost in silence."""
        for far in self.far:
            far.heal()
        self.run(asyncio.sleep(30))
        self.run(self.store.settle())
        for key in sorted(set(self.kept) - self.leaky - self.unsettled):
            self.find(key)
            assert key in self.kept
        for key in KEYS:
            self.fetch(key)
            self.unsettled.discard(key)

    # ---- what holds ------------------------------------------------------------------

    @invariant()
    def the_owner_heard_the_truth(self) -> None:
        """Checked here, since who calls the owner does not expect it to raise."""
        assert not self.wrong

    @invariant()
    def the_queues_are_bounded(self) -> None:
        if hasattr(self, "store"):
            assert self.store.queued_bytes <= self.most_queued_bytes

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.heal()
            for key in KEYS:
                self.drop(key)
            self.run(self.store.settle())
            stores: list[Inventory] = [*self.insides, self.store]
            for store in stores:
                stat = self.run(store.stat())
                assert (stat.states, stat.stored_bytes) == (0, 0)
            assert not self.wrong
            assert self.store.known_keys == self.store.queued_bytes == 0
            self.run(self.store.aclose())
        self.loop.close()

    @property
    def is_troubled(self) -> bool:
        """Whether a tier may fail or hang now."""
        return not all(far.is_well for far in self.far)

    def _unlike(self, text: str) -> str:
        """Return a text that was not there before, so that states can be told apart."""
        self.texts += 1
        return text[:-1] + chr(0x21 + self.texts % 0x5E)

    def _settle_by_host(self, key: str) -> None:
        if peek(self.insides[0], key) == self.kept[key].manifest:
            self.unsettled.discard(key)
        else:
            self.unsettled.add(key)


def peek(store: MemoryStore, key: str) -> Manifest | None:
    """Return what a store in memory holds, without letting others run."""
    try:
        store.find(key).send(None)
    except StopIteration as answer:
        manifest: Manifest = answer.value
        return manifest
    except StateMissing:
        return None
    raise AssertionError("a store in memory waits for nothing")


def test_any_trouble() -> None:
    """Whatever tiers do, a fetch is right, losses are told, and nothing is left."""
    run_state_machine_as_test(
        TieredMachine,
        settings=settings(max_examples=100, stateful_step_count=30, deadline=None),
    )
