"""An accelerator as a cost model on the loop's time.

Nothing is computed; what a real engine would have spent is waited for instead. On a
``VirtualTimeLoop`` waiting costs nothing, so a day of agents replays in seconds,
through the same runtime and scheduler that serve a real engine.

The model: prefills run one after the other; decodes run as one batch whose step grows
with its sequences and their contexts; copies in and out share one link and do not
disturb the compute. A decode moves from event to event (a sequence joins or leaves),
never token by token.
"""

import asyncio
import heapq
from array import array
from collections.abc import AsyncGenerator, Sequence

from ..state_store import KVState, StateStoreError, hash_token_ids
from .accelerators import Accelerator
from .backend import Capabilities, Chunk, FinishReason, Prefilled, Request
from .errors import ContextTooLong, ExportFailed, ImportRefused
from .prefix import common_prefix_tokens

_NO_TOKENS = array("i")
_SAMPLED = 0  # the token that every simulated answer consists of


class _Slot:
    """What a slot holds: a prompt, and how many sampled tokens behind it.

    Prompts have tens of thousands of tokens, and appending to one copies it; so the
    answer is only counted.
    """

    __slots__ = ("answer_tokens", "prompt")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.prompt, self.answer_tokens = _NO_TOKENS, 0

    def fill(self, prompt: "array[int]", answer_tokens: int = 0) -> None:
        """Hold *prompt* and an answer of that length."""
        self.prompt, self.answer_tokens = prompt, answer_tokens

    def common_tokens(self, ids: "array[int]") -> int:
        """Return how many leading tokens of *ids* are held."""
        common = common_prefix_tokens(self.prompt, ids)
        if common < len(self.prompt):
            return common
        answer = ids[common : common + self.answer_tokens]
        return common + common_prefix_tokens(_answer(len(answer)), answer)

    @property
    def ids(self) -> "array[int]":
        """What is held, in full."""
        return self.prompt + _answer(self.answer_tokens)

    def begins_with(self, ids: "array[int]") -> bool:
        """Return whether *ids* lead what is held."""
        return len(ids) == self.common_tokens(ids)


def _answer(tokens: int) -> "array[int]":
    return array("i", [_SAMPLED]) * tokens


class SimulatedBackend:
    """A ``Backend`` that takes the time of one and computes nothing."""

    def __init__(
        self,
        *,
        accelerator: Accelerator | None = None,
        name: str = "smollm2-cpu",
        slots: int = 2,
        kv_tokens: int | None = None,
        context_tokens: int | None = None,
        exports_rows: bool = True,
    ) -> None:
        self._accelerator = accelerator or Accelerator()
        total = 4096 * slots if kv_tokens is None else kv_tokens
        self._capabilities = Capabilities(
            exports_kv=True,
            slots=slots,
            kv_tokens=total,
            context_tokens=total if context_tokens is None else context_tokens,
            bytes_per_token=self._accelerator.bytes_per_token,
            identity=f"simulated {name}",
            exports_rows=exports_rows,
            exports_slices=exports_rows,
        )
        self._slots = [_Slot() for _ in range(slots)]
        self._compute = asyncio.Lock()
        self._link = asyncio.Lock()
        self._batch = _DecodeBatch(self._accelerator)

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""
        return self._capabilities

    def held_ids(self, slot: int) -> "array[int]":
        """Return the token ids whose state *slot* holds, for whoever wants to look."""
        return self._slots[slot].ids

    async def prefill(self, slot: int, request: Request) -> Prefilled:
        """Wait as long as the new part of the prompt would take."""
        prompt = _as_array(request.prompt)
        if len(prompt) + request.max_tokens > self._capabilities.context_tokens:
            raise ContextTooLong(
                f"{len(prompt)} tokens and {request.max_tokens} to come do not fit "
                f"a context of {self._capabilities.context_tokens}"
            )
        held = self._slots[slot]
        # As in a real engine, the last token is always computed: it gives the logits.
        reused = min(held.common_tokens(prompt), len(prompt) - 1)
        computed = len(prompt) - reused
        held.clear()  # undefined until done
        busy_s = self._accelerator.prefill_s(computed, reused)
        async with self._compute:
            if self._accelerator.shared_compute:
                self._batch.pause(1)
            try:
                await asyncio.sleep(busy_s)
            finally:
                if self._accelerator.shared_compute:
                    self._batch.pause(-1)
        held.fill(prompt)
        finish = FinishReason.LENGTH if request.max_tokens == 1 else None
        return Prefilled(
            computed_tokens=computed,
            reused_tokens=reused,
            busy_s=busy_s,
            first=Chunk(token_ids=(_SAMPLED,), text="", finish=finish),
        )

    async def decode(
        self, slot: int, request: Request, prefilled: Prefilled
    ) -> AsyncGenerator[Chunk, None]:
        """Wait until the batch has sampled the rest, then give it in one chunk."""
        rest = request.max_tokens - 1
        if rest < 1:
            return
        held = self._slots[slot]
        prompt = held.prompt
        held.clear()
        await self._batch.run(rest, len(prompt))
        held.fill(prompt, rest)
        ids = (_SAMPLED,) * rest
        yield Chunk(token_ids=ids, text="", finish=FinishReason.LENGTH)

    def become(self, accelerator: Accelerator) -> None:
        """Go on as *accelerator*: a link that has slowed down, a model swapped."""
        self._accelerator = accelerator
        self._batch.become(accelerator)

    async def export_kv(
        self, slot: int, key: str, token_ids: Sequence[int], *, first_token: int = 0
    ) -> KVState:
        """Wait as long as the copy would take; the payload only names the tokens."""
        ids = _as_array(token_ids)
        if not self._slots[slot].begins_with(ids):
            raise ExportFailed(
                f"slot {slot} does not hold the {len(ids)} tokens of {key!r}"
            )
        size = (len(ids) - first_token) * self._accelerator.bytes_per_token
        async with self._link:
            await asyncio.sleep(self._copy_s(size, self._accelerator.save_bytes_per_s))
        return KVState.seal(
            key=key,
            model="simulated",
            engine="simulated",
            layout="none",
            token_ids=ids,
            payload=len(ids).to_bytes(8, "little"),
            kv_bytes=size,
            first_token=first_token,
        )

    async def import_kv(
        self, slot: int, state: KVState, token_ids: Sequence[int]
    ) -> None:
        """Wait as long as the copy back would take."""
        ids = _as_array(token_ids)
        self._slots[slot].clear()
        self._check(state, ids)
        size = state.manifest.kv_bytes
        async with self._link:
            await asyncio.sleep(
                self._copy_s(size, self._accelerator.restore_bytes_per_s)
            )
        self._slots[slot].fill(ids)

    async def release(self, slot: int) -> None:
        """Forget what the slot holds."""
        self._slots[slot].clear()

    async def aclose(self) -> None:
        """Forget everything."""
        for slot in self._slots:
            slot.clear()

    def _copy_s(self, size_bytes: int, bytes_per_s: float) -> float:
        return self._accelerator.copy_setup_s + size_bytes / bytes_per_s

    def _check(self, state: KVState, ids: "array[int]") -> None:
        manifest = state.manifest
        ours = ("simulated", "simulated", "none")
        if (manifest.model, manifest.engine, manifest.layout) != ours:
            raise ImportRefused(
                f"state {manifest.key!r} is of model {manifest.model!r}, engine "
                f"{manifest.engine!r} and layout {manifest.layout!r}, not of this one"
            )
        if manifest.token_hash != hash_token_ids(ids):
            raise ImportRefused(f"state {manifest.key!r} is of other tokens")
        try:
            state.verify()
        except StateStoreError as error:
            raise ImportRefused(str(error)) from error


class _DecodeBatch:
    """Sequences that decode together, advanced in closed form.

    ``_steps`` counts the steps since the beginning. A sequence that joins at step s for
    n tokens leaves at step s + n; one timer stands at the earliest leave. Whenever the
    batch changes, the steps so far are booked and the step time is computed anew.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._steps = 0.0
        self._booked_s = 0.0
        self._step_s = 0.0
        self._sequences = 0
        self._context_tokens = 0
        self._number = 0
        self._leaves: list[tuple[float, int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._pauses = 0

    async def run(self, tokens: int, context_tokens: int) -> None:
        """Return when a sequence of this context has got *tokens* more."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        context_tokens += tokens // 2  # the mean over the sequence's stay
        self._book(loop)
        self._number += 1
        heapq.heappush(self._leaves, (self._steps + tokens, self._number, done))
        self._change(loop, 1, context_tokens)
        try:
            await done
        finally:
            self._book(loop)
            self._leaves = [leave for leave in self._leaves if leave[2] is not done]
            heapq.heapify(self._leaves)
            self._change(loop, -1, -context_tokens)

    def pause(self, change: int) -> None:
        """Stand still while a prefill has the compute: 1 begins it, -1 ends it."""
        loop = asyncio.get_running_loop()
        self._book(loop)
        self._pauses += change
        self._change(loop, 0, 0)

    def become(self, accelerator: Accelerator) -> None:
        """Take the step time of another accelerator from now on."""
        loop = asyncio.get_running_loop()
        self._book(loop)
        self._accelerator = accelerator
        self._change(loop, 0, 0)

    def _book(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        if self._sequences and not self._pauses:
            self._steps += (now_s - self._booked_s) / self._step_s
        self._booked_s = now_s

    def _change(
        self, loop: asyncio.AbstractEventLoop, sequences: int, context_tokens: int
    ) -> None:
        self._sequences += sequences
        self._context_tokens += context_tokens
        self._step_s = self._accelerator.step_s(self._sequences, self._context_tokens)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._leaves and not self._pauses:
            wait_s = max(0.0, self._leaves[0][0] - self._steps) * self._step_s
            self._timer = loop.call_later(wait_s, self._wake_first)

    def _wake_first(self) -> None:
        # The sequence books and leaves in its own task; others may be due as well.
        self._timer = None
        done = self._leaves[0][2]
        if not done.done():
            done.set_result(None)


def _as_array(token_ids: Sequence[int]) -> "array[int]":
    return token_ids if isinstance(token_ids, array) else array("i", token_ids)
