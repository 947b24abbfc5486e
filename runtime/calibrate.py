"""Finds out what work costs on a backend, within a budget of time.

First a context *grows* by doubling, as far as time allows: a prefill of each step, and
a copy of each size to the store. Then, in rounds, two of the sizes are brought back to
two slots, saved again, read on a little and decoded from, alone and together; and a
third is computed anew. Sizes alternate, so that a busy moment of the machine hits no
size alone.

Time is the loop's: on a ``VirtualTimeLoop`` a simulated accelerator takes no time.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final

import anyio

from ..backends import Backend, Prefilled, Tokenizer
from ..scheduler.cost import CostModel
from ..state_store import StateStore
from .errors import WrongInput
from .stopwatch import Stopwatch

# Called with the share of the time that has passed, and what is measured next.
Progress = Callable[[float, str], None]

# Engine and process start come on top, and all of it should end within a minute.
_BUDGET_S: Final = 45.0
_GROWTH_SHARE: Final = 0.35
_ANEW_SHARE: Final = 0.05
_WARM_UP_TOKENS: Final = 16
_FIRST_TOKENS: Final = 128
_LEAST_CONTEXT_TOKENS: Final = 512
_ROUNDS: Final = 16
_COPIES: Final = 2
_DECODE_S: Final = 0.4
_LEAST_STEPS: Final = 8
_MOST_STEPS: Final = 64
# Engines compute tokens in blocks. We measured llama.cpp on a CPU: a token of fewer
# than 64 at once costs up to 1.6 times as much, of 64 as much as of 512.
_APPENDED_TOKENS: Final = 64
# What a round appends to a size and decodes behind it.
_ROOM_TOKENS: Final = 2 * (_APPENDED_TOKENS + _MOST_STEPS)
_CLEAN_UP_S: Final = 10.0

# Content does not matter, only that the ids are some of the model's own.
_TEXT: Final = "The agent reads a file, runs the tests and waits for what they say. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was found; ``longest_tokens`` is the longest context that was parked."""

    costs: CostModel
    tier: str
    bytes_per_token: float
    longest_tokens: int
    samples: int
    seconds: float


async def calibrate(
    backend: Backend,
    store: StateStore,
    *,
    budget_s: float = _BUDGET_S,
    progress: Progress | None = None,
) -> Calibration:
    """Measure *backend* with *store*; both must be idle, and are emptied at the end.

    Takes about ``budget_s``. Raises WrongInput where the backend is too small, too slow
    or hands out no state, and what backend and store raise.
    """
    _check(backend)
    course = _Course(backend, store, await _tokens(backend), budget_s, progress)
    try:
        return await course.run()
    finally:
        with anyio.move_on_after(_CLEAN_UP_S, shield=True):
            await course.watch.clean_up()


class _Course:
    """What is measured, in which order, and until when."""

    def __init__(
        self,
        backend: Backend,
        store: StateStore,
        tokens: "array[int]",
        budget_s: float,
        progress: Progress | None,
    ) -> None:
        self._tokens = tokens
        self._budget_s = budget_s
        self._progress = progress
        self._began_s = anyio.current_time()
        self._backend = backend
        self.watch = Stopwatch(backend, store, self._say)

    async def run(self) -> Calibration:
        """Measure everything and fit it."""
        watch = self.watch
        await watch.warm_up(self._tokens[:_WARM_UP_TOKENS])
        sizes = await self._grow()
        await self._go_round(sizes)
        return Calibration(
            costs=watch.fitted(),
            tier=watch.tier,
            bytes_per_token=watch.bytes_per_token,
            longest_tokens=max(sizes),
            samples=watch.samples,
            seconds=self._passed_s,
        )

    async def _grow(self) -> list[int]:
        """Prefill and park ever longer contexts; return their lengths."""
        limit = len(self._tokens) - _ROOM_TOKENS
        share_s = _GROWTH_SHARE * self._budget_s
        size, held, sizes = min(_FIRST_TOKENS, limit // 2), 0, list[int]()
        while size > held:
            expected_s = self.watch.costs.prefill_s(size - held, held) or 0.0
            if self._passed_s + expected_s > share_s:
                if sizes or size <= _WARM_UP_TOKENS:
                    break
                size //= 2  # a slow machine, or a large model
                continue
            await self.watch.prefill(0, self._tokens[:size])
            await self.watch.save(0, self._tokens[:size])
            sizes.append(size)
            held, size = size, min(2 * size, limit)
        if not sizes:
            raise WrongInput(
                f"reading {size} tokens takes longer than {share_s:.0f} s here: "
                "too long to calibrate"
            )
        await self._backend.release(0)
        return sizes

    async def _go_round(self, sizes: Sequence[int]) -> None:
        """Bring pairs of sizes back and work on them, until the time is over."""
        longest_s = 0.0
        count = len(sizes)
        anew = [size for size in sizes if self._is_quick(size)] or sizes[:1]
        for number in range(_ROUNDS):
            began_s = self._passed_s
            if began_s + longest_s > self._budget_s:
                break
            # A short one and a long one, and each in its turn.
            first, second = number % count, (number + (count + 1) // 2) % count
            await self.watch.prefill(0, self._tokens[: anew[number % len(anew)]])
            await self._round(
                self._tokens[: sizes[first]], self._tokens[: sizes[second]]
            )
            longest_s = max(longest_s, self._passed_s - began_s)

    async def _round(self, *prompts: "array[int]") -> None:
        watch = self.watch
        for slot, prompt in [*enumerate(prompts)] * _COPIES:
            await watch.restore(slot, prompt)
            await watch.save(slot, prompt)
        first, second = prompts
        first, prefilled = await self._append(0, first)
        steps = self._steps(1, len(first))
        first += await watch.decode_alone(first, prefilled, steps)
        pair = [await self._append(0, first), await self._append(1, second)]
        steps = self._steps(2, len(first) + len(second))
        await watch.decode_together(pair, steps)
        for slot in range(2):
            await self._backend.release(slot)

    async def _append(
        self, slot: int, prompt: "array[int]"
    ) -> tuple["array[int]", Prefilled]:
        start = len(prompt)
        longer = prompt + self._tokens[start : start + _APPENDED_TOKENS]
        return longer, await self.watch.prefill(slot, longer)

    def _is_quick(self, size: int) -> bool:
        """Return whether there is time to compute *size* tokens again and again."""
        expected_s = self.watch.costs.prefill_s(size, 0) or 0.0
        return expected_s < _ANEW_SHARE * self._budget_s

    def _steps(self, sequences: int, context_tokens: int) -> int:
        """Return how many steps make a decode long enough to be timed."""
        step_s = self.watch.costs.decode_step_s(sequences, context_tokens)
        wanted = _DECODE_S / step_s if step_s else _LEAST_STEPS
        return round(max(_LEAST_STEPS, min(_MOST_STEPS, wanted)))

    @property
    def _passed_s(self) -> float:
        return anyio.current_time() - self._began_s

    def _say(self, what: str) -> None:
        if self._progress is not None:
            self._progress(min(1.0, self._passed_s / self._budget_s), what)


def _check(backend: Backend) -> None:
    has = backend.capabilities
    if has.slots < 2 or not has.exports_kv:
        raise WrongInput(
            f"calibrating takes two slots and KV state that can be copied out; the "
            f"backend {has.identity!r} has {has.slots} slots and "
            f"{'can' if has.exports_kv else 'cannot'} copy it out"
        )
    if has.context_tokens < _LEAST_CONTEXT_TOKENS:
        raise WrongInput(
            f"calibrating takes a context of at least {_LEAST_CONTEXT_TOKENS} tokens, "
            f"not {has.context_tokens}"
        )


async def _tokens(backend: Backend) -> "array[int]":
    ids = await backend.encode(_TEXT) if isinstance(backend, Tokenizer) else [0]
    return array("i", islice(cycle(ids), backend.capabilities.context_tokens))
