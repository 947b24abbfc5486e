"""Backends for tests of the runtime: one with round costs, and some that misbehave.

All of them are simulated accelerators and take virtual time only. ``ROUND`` makes every
duration one that can be worked out in the head: a token of prompt 0.01 s, a token of
answer after the first 0.1 s, a token copied out 0.01 s, a token copied back 0.005 s.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import anyio

from kvalet.backends import (
    Chunk,
    EngineLost,
    ExportFailed,
    ImportRefused,
    Message,
    Prefilled,
    Request,
    SimulatedBackend,
)
from kvalet.backends.accelerators import Accelerator
from kvalet.state_store import KVState

ROUND = Accelerator(
    prefill_token_s=0.01,
    prefill_context_s=0.0,
    decode_step_s=0.1,
    decode_sequence_s=0.0,
    decode_context_s=0.0,
    copy_setup_s=0.0,
    save_bytes_per_s=1000.0,
    restore_bytes_per_s=2000.0,
    bytes_per_token=10,
)


class RoundBackend(SimulatedBackend):
    """An accelerator with round costs; it counts what it was asked to do."""

    def __init__(
        self,
        *,
        slots: int = 1,
        kv_tokens: int | None = None,
        context_tokens: int = 1000,
        exports_rows: bool = False,
    ) -> None:
        super().__init__(
            accelerator=ROUND,
            slots=slots,
            kv_tokens=slots * context_tokens if kv_tokens is None else kv_tokens,
            context_tokens=context_tokens,
            exports_rows=exports_rows,
        )
        self.released: list[int] = []

    @property
    def held_tokens(self) -> list[int]:
        """How many tokens each slot holds."""
        return [len(self.held_ids(slot)) for slot in range(self.capabilities.slots)]

    @property
    def distinct_ids(self) -> list[set[int]]:
        """Which token ids each slot holds."""
        return [set(self.held_ids(slot)) for slot in range(self.capabilities.slots)]

    async def release(self, slot: int) -> None:
        """Empty the slot, and say that it was asked for."""
        self.released.append(slot)
        await super().release(slot)


class Stream(RoundBackend):
    """Gives the answer token by token, each of them a while after the last."""

    async def decode(
        self, slot: int, request: Request, prefilled: Prefilled
    ) -> AsyncGenerator[Chunk, None]:
        """Cut the simulated chunk into its tokens."""
        async with aclosing(super().decode(slot, request, prefilled)) as chunks:
            async for chunk in chunks:
                *others, last = chunk.token_ids
                for token in others:
                    yield Chunk(token_ids=(token,), text="x")
                    await anyio.sleep(0.01)
                yield Chunk(token_ids=(last,), text="x", finish=chunk.finish)


class Scribe(RoundBackend):
    """Has a tokenizer: a token for each character, a line for each chat message."""

    async def encode(self, text: str) -> list[int]:
        """Return the characters' code points."""
        return [ord(character) for character in text]

    async def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return ``role:content`` and a line's end for each message."""
        lines = (f"{message.role}:{message.content}\n" for message in messages)
        return await self.encode("".join(lines))


class KeepsFirstToken(RoundBackend):
    """Hands out the first token with the rest of the answer, as some engines do."""

    async def prefill(self, slot: int, request: Request) -> Prefilled:
        """Keep the first token back."""
        return replace(await super().prefill(slot, request), first=None)

    async def decode(
        self, slot: int, request: Request, prefilled: Prefilled
    ) -> AsyncGenerator[Chunk, None]:
        """Give the first token, then the rest."""
        if request.max_tokens > 1:
            yield Chunk(token_ids=(0,), text="")
        async with aclosing(super().decode(slot, request, prefilled)) as chunks:
            async for chunk in chunks:
                yield chunk


class FailingExports(RoundBackend):
    """Never hands out any state."""

    async def export_kv(
        self, slot: int, key: str, token_ids: Sequence[int], *, first_token: int = 0
    ) -> KVState:
        """Fail after a while."""
        await anyio.sleep(0.1)
        raise ExportFailed(f"slot {slot} gave 0 bytes for {key!r}")


class RefusedImports(RoundBackend):
    """Takes no state back."""

    async def import_kv(
        self, slot: int, state: KVState, token_ids: Sequence[int]
    ) -> None:
        """Empty the slot and refuse after a while."""
        await super().release(slot)
        await anyio.sleep(0.1)
        raise ImportRefused(f"state {state.manifest.key!r} is of another build")


class SilentImports(RoundBackend):
    """Says that it has loaded a state, and has not."""

    async def import_kv(
        self, slot: int, state: KVState, token_ids: Sequence[int]
    ) -> None:
        """Empty the slot and report success."""
        await super().release(slot)


class DyingEngine(RoundBackend):
    """Dies in the middle of one answer, and is back for the next."""

    def __init__(self, *, slots: int = 1) -> None:
        super().__init__(slots=slots)
        self.deaths = 1

    async def decode(
        self, slot: int, request: Request, prefilled: Prefilled
    ) -> AsyncGenerator[Chunk, None]:
        """Give a token and die, as long as there are deaths to die."""
        if self.deaths:
            self.deaths -= 1
            await anyio.sleep(0.1)
            yield Chunk(token_ids=(0,), text="")
            raise EngineLost("the engine died")
        async with aclosing(super().decode(slot, request, prefilled)) as chunks:
            async for chunk in chunks:
                yield chunk


class NoExports(RoundBackend):
    """Says from the start that it moves no state."""

    def __init__(self) -> None:
        super().__init__()
        self._capabilities = replace(self._capabilities, exports_kv=False)


class SlowRelease(RoundBackend):
    """Takes a second to empty a slot."""

    async def release(self, slot: int) -> None:
        """Wait, then empty it."""
        await anyio.sleep(1)
        await super().release(slot)
