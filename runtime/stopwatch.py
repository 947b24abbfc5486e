"""Does one piece of work on a backend and notes how long it took.

Time is the loop's. ``costs`` is fitted as the samples come, for whoever has to plan
what can still be measured; ``Stopwatch.fitted`` is the fit to rely on. It hears the
median of every input first, so that no single slow moment is where it starts, then
everything, which tells it the spread, shuffled: a slow minute is no lasting change.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from enum import Enum, unique
from random import Random
from statistics import median
from typing import Final

import anyio

from ..backends import Backend, BackendError, Prefilled, Request, Sampling
from ..scheduler.cost import CostModel
from ..state_store import StateStore

_EXACT: Final = Sampling(ignore_stop=True)


@unique
class _Work(Enum):
    PREFILL = "prefill"
    DECODE_STEP = "decode step"
    SAVE = "save"
    RESTORE = "restore"


class Stopwatch:
    """Prefills, decodes, saves and restores, each timed; *say* hears what is next."""

    def __init__(
        self, backend: Backend, store: StateStore, say: Callable[[str], None]
    ) -> None:
        self._backend = backend
        self._store = store
        self._say = say
        self._samples: list[tuple[_Work, tuple[int, int], float]] = []
        self._keys: dict[int, str] = {}
        self.costs = CostModel()
        self.tier = ""
        self.bytes_per_token = 0.0

    @property
    def samples(self) -> int:
        """How many times something was measured."""
        return len(self._samples)

    def fitted(self) -> CostModel:
        """Return the fit of all samples."""
        costs = CostModel()
        groups = defaultdict[tuple[_Work, tuple[int, int]], list[float]](list)
        for work, inputs, seconds in self._samples:
            groups[work, inputs].append(seconds)
        for (work, inputs), group in groups.items():
            _observe(costs, work, inputs, median(group), self.tier)
        for work, inputs, seconds in Random(0).sample(self._samples, self.samples):
            _observe(costs, work, inputs, seconds, self.tier)
        return costs

    async def warm_up(self, prompt: "array[int]") -> None:
        """Let the engine do everything once; only ``costs`` hears of it."""
        self._say("warming up")
        began_s = anyio.current_time()
        request = _request(prompt, 4)
        prefilled = await self._backend.prefill(0, request)
        self.costs.observe_prefill(len(prompt), 0, anyio.current_time() - began_s)
        await self._decode(0, request, prefilled)
        await self._backend.release(0)

    async def prefill(self, slot: int, prompt: "array[int]") -> Prefilled:
        """Compute what of *prompt* the slot does not hold."""
        self._say(f"prefill up to {len(prompt):,} tokens")
        began_s = anyio.current_time()
        prefilled = await self._backend.prefill(slot, _request(prompt, 2))
        seconds = anyio.current_time() - began_s
        inputs = (prefilled.computed_tokens, prefilled.reused_tokens)
        self._note(_Work.PREFILL, inputs, seconds)
        return prefilled

    async def save(self, slot: int, prompt: "array[int]") -> None:
        """Copy out the state of *slot*, which is that of *prompt*, and store it."""
        self._say(f"save {len(prompt):,} tokens")
        key = self._keys.setdefault(len(prompt), f"calibrate-{len(prompt)}")
        began_s = anyio.current_time()
        state = await self._backend.export_kv(slot, key, prompt)
        receipt = await self._store.park(state)
        seconds = anyio.current_time() - began_s
        self.tier = receipt.tier
        self.bytes_per_token = receipt.nbytes / len(prompt)
        self._note(_Work.SAVE, (receipt.nbytes, 0), seconds)

    async def restore(self, slot: int, prompt: "array[int]") -> None:
        """Fetch the state of *prompt*, which was saved, and copy it in."""
        self._say(f"restore {len(prompt):,} tokens")
        began_s = anyio.current_time()
        state, receipt = await self._store.fetch(self._keys[len(prompt)])
        await self._backend.import_kv(slot, state, prompt)
        seconds = anyio.current_time() - began_s
        self._note(_Work.RESTORE, (receipt.nbytes, 0), seconds)

    async def decode_alone(
        self, prompt: "array[int]", prefilled: Prefilled, steps: int
    ) -> "array[int]":
        """Decode on slot 0; return what the slot holds behind *prompt* afterwards."""
        self._say(f"decode at {len(prompt):,} tokens")
        began_s = anyio.current_time()
        request = _request(prompt, steps + 1)
        output, done = await self._decode(0, request, prefilled)
        seconds = anyio.current_time() - began_s
        if done:
            inputs = (1, len(prompt) + done // 2)
            self._note(_Work.DECODE_STEP, inputs, seconds / done)
        return output[:-1]

    async def decode_together(
        self, pair: Sequence[tuple["array[int]", Prefilled]], steps: int
    ) -> None:
        """Decode on slots 0, 1, ... at once."""
        context_tokens = sum(len(prompt) for prompt, _ in pair)
        self._say(f"decode {len(pair)} sequences at {context_tokens:,} tokens")
        done = list[int]()

        async def run(slot: int, prompt: "array[int]", prefilled: Prefilled) -> None:
            request = _request(prompt, steps + 1)
            done.append((await self._decode(slot, request, prefilled))[1])

        began_s = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for slot, (prompt, prefilled) in enumerate(pair):
                tasks.start_soon(run, slot, prompt, prefilled)
        seconds = anyio.current_time() - began_s
        if len(set(done)) == 1 and done[0]:  # else they were not together to the end
            inputs = (len(pair), context_tokens + sum(steps // 2 for steps in done))
            self._note(_Work.DECODE_STEP, inputs, seconds / done[0])

    async def clean_up(self) -> None:
        """Empty the slots that were used and drop what was saved."""
        for slot in range(2):
            with suppress(BackendError):
                await self._backend.release(slot)
        for key in self._keys.values():
            await self._store.drop(key)

    async def _decode(
        self, slot: int, request: Request, prefilled: Prefilled
    ) -> tuple["array[int]", int]:
        """Return the whole answer, and how many tokens of it the decode has sampled."""
        first = prefilled.first
        output = array("i", first.token_ids if first is not None else ())
        before = len(output)
        chunks = self._backend.decode(slot, request, prefilled)
        async with aclosing(chunks):
            async for chunk in chunks:
                output.extend(chunk.token_ids)
        return output, len(output) - before

    def _note(self, work: _Work, inputs: tuple[int, int], seconds: float) -> None:
        self._samples.append((work, inputs, seconds))
        _observe(self.costs, work, inputs, seconds, self.tier)


def _observe(
    costs: CostModel, work: _Work, inputs: tuple[int, int], seconds: float, tier: str
) -> None:
    match work:
        case _Work.PREFILL:
            costs.observe_prefill(*inputs, seconds)
        case _Work.DECODE_STEP:
            costs.observe_decode_step(*inputs, seconds)
        case _Work.SAVE:
            costs.observe_save(inputs[0], seconds, tier)
        case _Work.RESTORE:
            costs.observe_restore(inputs[0], seconds, tier)


def _request(prompt: "array[int]", max_tokens: int) -> Request:
    return Request(prompt=prompt, max_tokens=max_tokens, sampling=_EXACT)
