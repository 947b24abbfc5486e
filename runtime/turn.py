"""One turn: submitted, granted, prefilled, decoded, in the task of whoever asked.

The accelerator work of a turn runs in its caller's task. Cancelling the caller, leaving
the block early or a failing engine all end in the same place: the work stops, the
scheduler hears TurnAborted, the conversation is as it was before. Where the engine can
be restarted, a turn that lost it goes on behind what it has said already.
"""

import asyncio
import contextlib
import math
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import msgspec

from ..backends import (
    BackendError,
    Chunk,
    EngineLost,
    FinishReason,
    Prefilled,
    Request,
    Sampling,
    common_prefix_tokens,
)
from ..scheduler import (
    DecodeDone,
    PrefillAdvanced,
    PrefillDone,
    TurnAborted,
    TurnSubmitted,
    UnknownSession,
)
from .conversation import Append, Conversation, Replace
from .errors import SessionEnded, WrongInput
from .slots import Grant, Place

# A prompt that kills the engine kills the next one too.
_MAX_RECOVERIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a turn cost: tokens, and seconds from its submission."""

    prompt_tokens: int
    reused_tokens: int
    output_tokens: int
    queue_s: float
    ttft_s: float
    turn_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason
    usage: Usage


class Turn:
    """A turn that has been asked for; it begins when awaited or iterated over.

    ``reply = await turn`` gives the whole answer. ``async with turn as stream: async
    for chunk in stream: ...`` gives it as it comes; leaving the block early ends it.
    """

    def __init__(
        self,
        conversation: Conversation,
        said: Append | Replace,
        max_tokens: int,
        sampling: Sampling,
        deadline_s: float | None = None,
    ) -> None:
        if max_tokens < 1:
            raise WrongInput(f"max_tokens must be at least 1, not {max_tokens}")
        if deadline_s is not None and not 0 < deadline_s < math.inf:
            raise WrongInput(
                f"deadline_s must be positive and finite, not {deadline_s}"
            )
        self._conversation = conversation
        self._dispatch = conversation.dispatch
        self._said = said
        self._max_tokens = max_tokens
        self._sampling = sampling
        self._deadline_s = deadline_s
        self._chunks: AsyncGenerator[Chunk, None] | None = None
        self._grant: Grant | None = None
        self._asked = False
        self._output: list[int] = []
        self._finish = FinishReason.LENGTH
        self._submitted_s = self._ended_s = 0.0
        self._started_s: float | None = None
        self._first_s: float | None = None
        self._generation = 0
        self._prompt_tokens = self._reused_tokens = 0

    def __await__(self) -> Generator[None, None, Reply]:
        return self._whole().__await__()

    async def __aenter__(self) -> Self:
        self._chunks = self._stream()
        return self

    def __aiter__(self) -> AsyncIterator[Chunk]:
        if self._chunks is None:
            raise WrongInput(
                "enter the turn with 'async with' before iterating over it"
            )
        return self._chunks

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._chunks is not None:
            await self._chunks.aclose()

    @property
    def usage(self) -> Usage:
        """What the turn has cost; final once its chunks have ended."""
        return Usage(
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self._reused_tokens,
            output_tokens=len(self._output),
            queue_s=(self._started_s or self._submitted_s) - self._submitted_s,
            ttft_s=(self._first_s or self._submitted_s) - self._submitted_s,
            turn_s=self._ended_s - self._submitted_s,
        )

    async def _whole(self) -> Reply:
        async with self as stream:
            text = "".join([chunk.text async for chunk in stream])
        return Reply(
            text=text,
            token_ids=tuple(self._output),
            finish=self._finish,
            usage=self.usage,
        )

    async def _stream(self) -> AsyncGenerator[Chunk, None]:
        if self._asked:
            raise WrongInput("a turn can be awaited or iterated over once")
        self._asked = True
        conversation = self._conversation = self._conversation.begin()
        try:
            prompt, prefix_tokens = await conversation.encode(self._said)
            self._prompt_tokens = len(prompt)
            self._submitted_s = self._now_s()
            conversation.settle(len(prompt) + self._max_tokens)
            self._dispatch = conversation.dispatch
            for recoveries_left in reversed(range(_MAX_RECOVERIES + 1)):
                request = self._request(prompt)
                prefix_tokens = await conversation.find(_ids(request), prefix_tokens)
                self._submit(request, prefix_tokens)
                try:
                    prefilled = await self._prefill(request, prompt)
                    if prefilled.first is not None:
                        yield prefilled.first
                        if prefilled.first.finish is not None:
                            return
                    slot, place = await self._granted()
                    chunks = self._dispatch.backend.decode(slot, request, prefilled)
                    last: Chunk | None = None
                    async with place, contextlib.aclosing(chunks):
                        async for chunk in chunks:
                            self._note(chunk)
                            if chunk.finish is None:
                                yield chunk
                            else:
                                last = chunk
                    self._dispatch.happen(self._decode_done(prompt))
                    if last is not None:  # whoever leaves here has the whole turn
                        yield last
                    return
                except EngineLost as error:
                    self._abort(error)
                    if not (recoveries_left and await self._carry_on()):
                        raise
                except BaseException as error:
                    self._abort(error)
                    raise
                if len(self._output) >= self._max_tokens:  # all was said but the end
                    self._conclude(prompt)
                    yield Chunk(token_ids=(), text="", finish=FinishReason.LENGTH)
                    return
                prefix_tokens = common_prefix_tokens(conversation.tokens, prompt)
        finally:
            with contextlib.suppress(SessionEnded):  # the runtime may have gone first
                conversation.finish()

    async def _carry_on(self) -> bool:
        """Get an engine to go on with, this one or another; return whether there is."""
        conversation = self._conversation
        try:
            if self._dispatch.recovery.possible:
                await self._dispatch.recover(conversation.id, self._generation)
                return True
        except BackendError:
            if not conversation.flee():
                raise
        else:
            if not conversation.flee():
                return False
        self._dispatch = conversation.dispatch
        return True

    # ---- the phases ------------------------------------------------------------------

    def _request(self, prompt: "array[int]") -> Request:
        """Ask for what is still to be said, behind what has been said already."""
        if not prompt:
            raise WrongInput("the prompt is empty")
        said = self._output
        return Request(
            prompt=prompt + array("i", said) if said else prompt,
            max_tokens=self._max_tokens - len(said),
            sampling=self._sampling,
        )

    def _submit(self, request: Request, prefix_tokens: int) -> None:
        session = self._conversation.id
        self._grant = self._dispatch.expect(session)
        self._dispatch.happen(
            TurnSubmitted(
                at_s=self._now_s(),
                session=session,
                prompt_tokens=len(request.prompt),
                prefix_tokens=prefix_tokens,
                max_output_tokens=request.max_tokens,
                deadline_s=self._due_s(),
            )
        )

    def _due_s(self) -> float | None:
        """Return when the first token should be there, if it matters and is not."""
        if self._deadline_s is None or self._first_s is not None:
            return None
        return self._submitted_s + self._deadline_s

    async def _granted(self) -> tuple[int, Place]:
        assert self._grant is not None
        return await self._grant.wait()

    async def _prefill(self, request: Request, prompt: "array[int]") -> Prefilled:
        """Compute the prompt and say so; what follows it is granted by then.

        It may be granted in parts, so that others have their turn in between.
        """
        while True:
            slot, place = await self._granted()
            async with place:
                part, event, prefilled = await self._compute(slot, request)
                first = prefilled.first
                if part is request and first is not None:
                    self._note(first)
                    if first.finish is not None:
                        self._dispatch.happen_all(event, self._decode_done(prompt))
                        return prefilled
                self._grant = self._dispatch.expect(self._conversation.id)
                self._dispatch.happen(event)
            if part is request:
                return prefilled

    async def _compute(
        self, slot: int, request: Request
    ) -> tuple[Request, PrefillAdvanced | PrefillDone, Prefilled]:
        """Compute as much of the prompt as was granted; return it and what to tell."""
        conversation = self._conversation
        await self._dispatch.recovery.wait()
        self._generation = self._dispatch.recovery.generation
        session = self._dispatch.scheduler.session(conversation.id)
        assert session.turn is not None
        held, until = session.reusable_tokens, session.turn.until_tokens
        began_s = self._now_s()
        conversation.tokens = _ids(request)
        part = request
        if until is not None and until < len(request.prompt):
            part = replace(request, prompt=request.prompt[:until])
        prefilled = await self._dispatch.backend.prefill(slot, part)
        if self._first_s is None:  # a resumed turn has had its first token
            if self._started_s is None:
                self._started_s = began_s
                self._reused_tokens = prefilled.reused_tokens
            if part is request:
                self._first_s = self._now_s()
        return part, self._computed(part, prefilled, held, part is request), prefilled

    def _computed(
        self, part: Request, prefilled: Prefilled, held_tokens: int, whole: bool
    ) -> PrefillAdvanced | PrefillDone:
        """Return what was computed and reused as an event."""
        id = self._conversation.id
        # The engine computes the last token always: it gives the logits.
        expected_tokens = min(held_tokens, len(part.prompt) - 1)
        reused_all = prefilled.reused_tokens >= expected_tokens
        done = PrefillDone(
            at_s=self._now_s(),
            session=id,
            computed_tokens=prefilled.computed_tokens,
            reused_tokens=prefilled.reused_tokens,
            expected_tokens=expected_tokens,
            verified=self._dispatch.verify_restore(id, reused_all),
            busy_s=prefilled.busy_s,
        )
        if whole:
            return done
        return PrefillAdvanced(
            kv_tokens=len(part.prompt), **msgspec.structs.asdict(done)
        )

    def _decode_done(self, prompt: "array[int]") -> DecodeDone:
        """Take the answer into the conversation and say that the turn has ended."""
        self._conclude(prompt)
        return DecodeDone(
            at_s=self._ended_s,
            session=self._conversation.id,
            output_tokens=len(self._output),
            # The last sampled token has not been through the model.
            kv_tokens=len(prompt) + max(0, len(self._output) - 1),
        )

    def _conclude(self, prompt: "array[int]") -> None:
        self._ended_s = self._now_s()
        conversation = self._conversation
        conversation.said = prompt + array("i", self._output)
        conversation.tokens = conversation.said

    def _note(self, chunk: Chunk) -> Chunk:
        self._output.extend(chunk.token_ids)
        if chunk.finish is not None:
            self._finish = chunk.finish
        return chunk

    def _abort(self, error: BaseException) -> None:
        """Tell the scheduler that the turn is over, unless it knows."""
        id = self._conversation.id
        self._dispatch.abandon(id)
        if self._grant is not None:
            self._grant.withdraw()
        with contextlib.suppress(SessionEnded, UnknownSession):
            if self._dispatch.scheduler.session(id).turn is not None:
                # What ran is dropped, and an older copy is of what both begin with.
                self._conversation.tokens = self._conversation.said
                self._dispatch.happen(
                    TurnAborted(at_s=self._now_s(), session=id, reason=_reason(error))
                )

    def _now_s(self) -> float:
        return self._dispatch.clock.now_s()


def _reason(error: BaseException) -> str:
    if isinstance(error, GeneratorExit):
        return "left early"
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"  # its own text can hold addresses, and runs have to repeat
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _ids(request: Request) -> "array[int]":
    ids = request.prompt
    return ids if isinstance(ids, array) else array("i", ids)
