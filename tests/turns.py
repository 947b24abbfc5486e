"""Running whole turns on a backend, as several files of tests do."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvalet.backends import (
    Backend,
    Chunk,
    FinishReason,
    Prefilled,
    Request,
    Sampling,
)

EXACT = Sampling(ignore_stop=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one turn gave; ``held`` are the tokens that the slot holds after it."""

    prefilled: Prefilled
    chunks: tuple[Chunk, ...]
    output: tuple[int, ...]
    held: tuple[int, ...]

    @property
    def text(self) -> str:
        """All text, in order."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def finish(self) -> FinishReason | None:
        """What the last chunk says."""
        return self.chunks[-1].finish


async def run_turn(
    backend: Backend,
    slot: int,
    prompt: Sequence[int],
    max_tokens: int,
    sampling: Sampling = EXACT,
) -> Outcome:
    """Prefill and decode one turn."""
    request = Request(prompt=prompt, max_tokens=max_tokens, sampling=sampling)
    prefilled = await backend.prefill(slot, request)
    chunks = [] if prefilled.first is None else [prefilled.first]
    chunks.extend([chunk async for chunk in backend.decode(slot, request, prefilled)])
    output = tuple(token for chunk in chunks for token in chunk.token_ids)
    return Outcome(
        prefilled=prefilled,
        chunks=tuple(chunks),
        output=output,
        held=(*prompt, *output[:-1]),
    )
