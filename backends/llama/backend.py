"""A real model in a child process: llama-server, driven slot by slot.

The server is never left to choose: every request is pinned to a slot, no two are in
flight for one slot, and its own caches are off. What a slot holds is therefore what
this side put there, and whatever the server says about it is compared with that.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self

import anyio

from ...state_store import KVState
from ..backend import Capabilities, Chunk, Message, Prefilled, Request
from ..errors import (
    ContextTooLong,
    EngineLost,
    ExportFailed,
    ImportRefused,
)
from .client import Event, LlamaClient, Refused, Saved
from .engine import Engine, EngineSettings, check_model, check_size
from .layout import Learned, learn
from .scratch import MEMORY_FOLDERS, Scratch
from .slot_file import estimated_bytes
from .threads import in_thread, removed
from .transcript import Transcript, continuation, first_chunk, wants_stop_strings
from .transfer import (
    Provenance,
    check,
    collect,
    fingerprint,
    read_token_ids,
    stage,
)

_DEFAULT_CONTEXT_TOKENS: Final = 4096
_SETTLE_S: Final = 60.0


class LlamaBackend:
    """Implements ``Backend`` and ``Tokenizer`` on an embedded llama-server."""

    def __init__(
        self,
        *,
        settings: EngineSettings,
        bytes_per_token: int,
        fingerprint: str,
        scratch: Scratch,
        engine: Engine,
        learned: Learned,
        silence_timeout_s: float,
    ) -> None:
        self._settings = settings
        self._layout = learned.layout
        self._notes = tuple(note for note in (scratch.note, learned.note) if note)
        self._capabilities = Capabilities(
            exports_kv=True,
            slots=settings.slots,
            kv_tokens=settings.slots * settings.context_tokens,
            context_tokens=settings.context_tokens,
            bytes_per_token=bytes_per_token,
            identity=f"llama {engine.build} {fingerprint} threads={settings.threads}",
            exports_rows=self._layout.exports_rows,
        )
        self._fingerprint = fingerprint
        self._scratch = scratch
        self._silence_timeout_s = silence_timeout_s
        self._attach(engine)

    @classmethod
    async def start(
        cls,
        *,
        model_path: Path | str,
        slots: int = 2,
        context_tokens: int | None = None,
        threads: int = 1,
        batch_tokens: int = 512,
        port: int = 0,
        start_timeout_s: float = 120.0,
        silence_timeout_s: float = 600.0,
        scratch_folders: Sequence[Path] = MEMORY_FOLDERS,
    ) -> Self:
        """Start an engine on the model file; raise EngineStartError.

        ``context_tokens`` is per slot, by default 4096 or what the model was trained
        for. Output is the same token for token only at the same number of ``threads``.
        Slot files go to the first of ``scratch_folders`` with room for two full slots,
        else to the system's folder for temporary files.
        """
        path = Path(model_path).absolute()
        header = await in_thread(check_model, path)
        if context_tokens is None:
            context_tokens = min(_DEFAULT_CONTEXT_TOKENS, header.context_tokens)
        check_size(header, slots, context_tokens)
        settings = EngineSettings(
            model_path=path,
            slots=slots,
            context_tokens=context_tokens,
            threads=threads,
            batch_tokens=batch_tokens,
            port=port,
            start_timeout_s=start_timeout_s,
        )
        bytes_per_token = header.bytes_per_token()
        # One file on its way out while another comes in.
        moving_bytes = 2 * estimated_bytes(context_tokens, bytes_per_token)
        scratch = Scratch.create(moving_bytes, scratch_folders)
        try:
            weights = await in_thread(fingerprint, path)
            engine = await Engine.start(settings, scratch.folder)
            try:
                async with aclosing(_client(engine, silence_timeout_s)) as client:
                    learned = await learn(client, scratch, slots)
                return cls(
                    settings=settings,
                    bytes_per_token=bytes_per_token,
                    fingerprint=weights,
                    scratch=scratch,
                    engine=engine,
                    learned=learned,
                    silence_timeout_s=silence_timeout_s,
                )
            except BaseException:
                await engine.aclose()
                raise
        except BaseException:
            scratch.remove()
            raise

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do; constant over its life."""
        return self._capabilities

    @property
    def fingerprint(self) -> str:
        """The sha256 of the model file, as states are marked with it."""
        return self._fingerprint

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that the user should read once."""
        return self._notes

    @property
    def url(self) -> str:
        """Where the engine answers, for looking at its own metrics and slots."""
        return self._engine.url

    def process_ids(self) -> tuple[int, ...]:
        """Return the engine's processes, whose memory is the model's and not ours."""
        return (self._engine.process.pid,) if self._engine.alive else ()

    async def prefill(self, slot: int, request: Request) -> Prefilled:
        """Compute the KV state of the prompt on *slot* and sample the first token."""
        self._check_slot(slot)
        room = self._room(request)
        transcript = Transcript()
        async with self._settled(slot), self._events(slot, request, 0) as events:
            async for event in events:
                transcript.add(event)
        timings = transcript.last.timings
        if timings is None:
            raise EngineLost(f"the engine says nothing of its prefill on slot {slot}")
        return Prefilled(
            computed_tokens=timings.prompt_n,
            reused_tokens=timings.cache_n,
            busy_s=timings.prompt_ms / 1000,
            first=first_chunk(transcript, room, request.sampling),
        )

    async def decode(
        self, slot: int, request: Request, prefilled: Prefilled
    ) -> AsyncGenerator[Chunk, None]:
        """Sample what follows ``prefilled.first``, at most ``max_tokens`` in all.

        Close it (``aclosing``) if it is not read to its end: only then does the server
        stop, and only afterwards may the slot be used again.
        """
        self._check_slot(slot)
        first = prefilled.first
        if first is not None and first.finish is not None:
            return
        request, left = continuation(request, self._room(request), first)
        transcript = Transcript()
        async with self._settled(slot):
            async with self._events(slot, request, left) as events:
                async for event in events:
                    chunk = transcript.add(event)
                    if chunk.token_ids or chunk.text:
                        yield chunk
            end = await self._end(slot, request, transcript)
        yield end

    async def export_kv(
        self, slot: int, key: str, token_ids: Sequence[int], *, first_token: int = 0
    ) -> KVState:
        """Copy out the rows of *token_ids* from *first_token* on.

        The slot has to hold these tokens, perhaps more. If ``exports_rows`` is False it
        must be exactly these, and all rows.
        """
        self._check_slot(slot)
        self._check_space(len(token_ids))
        async with self._saved(slot) as (path, saved):
            return await in_thread(
                collect,
                path,
                saved,
                key,
                token_ids,
                first_token,
                self._provenance,
                self._layout,
            )

    async def import_kv(
        self, slot: int, state: KVState, token_ids: Sequence[int]
    ) -> None:
        """Load *state* into *slot*, if it is this engine's and of *token_ids*."""
        self._check_slot(slot)
        path = self._scratch.new_path()
        async with removed(path), self._settled(slot):
            await in_thread(check, state, token_ids, self._provenance)
            length_bytes = await in_thread(
                stage, state, token_ids, self._layout, slot, path
            )
            try:
                restored = await self._client.restore(slot, path.name)
            except Refused as error:
                raise ImportRefused(
                    f"state {state.manifest.key!r} can't be loaded: {error}"
                ) from error
            if (restored.n_restored, restored.n_read) != (len(token_ids), length_bytes):
                raise ImportRefused(
                    f"the engine restored {restored.n_restored} tokens from "
                    f"{restored.n_read} bytes, not {len(token_ids)} from {length_bytes}"
                )

    async def release(self, slot: int) -> None:
        """Empty *slot*; nothing of its content is reused afterwards."""
        self._check_slot(slot)
        await self._client.erase(slot)

    async def encode(self, text: str) -> list[int]:
        """Return the token ids of *text*; what looks like a special token is text."""
        return await self._client.tokenize(text, special=False)

    async def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt for *messages* in the model's own chat template."""
        prompt = await self._client.apply_template(messages)
        return await self._client.tokenize(prompt, special=True)

    async def restart(self) -> None:
        """Replace the engine by a fresh one; all slots are empty afterwards."""
        await self._stop()
        self._attach(await Engine.start(self._settings, self._scratch.folder))

    async def aclose(self) -> None:
        """Stop the engine and remove everything that it left behind."""
        try:
            await self._stop()
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(self._scratch.remove)

    async def _stop(self) -> None:
        try:
            await self._client.aclose()
        finally:
            await self._engine.aclose()

    def _attach(self, engine: Engine) -> None:
        self._engine = engine
        self._client = _client(engine, self._silence_timeout_s)
        self._provenance = Provenance(
            model=self._fingerprint,
            engine=engine.build,
            layout=self._layout.name,
        )

    def _check_slot(self, slot: int) -> None:
        # The server takes any number modulo its slots and says nothing.
        if not 0 <= slot < self._capabilities.slots:
            raise ValueError(
                f"slot {slot} was named, there are 0 to {self._capabilities.slots - 1}"
            )

    def _check_space(self, tokens: int) -> None:
        needed_bytes = estimated_bytes(tokens, self._capabilities.bytes_per_token)
        free_bytes = self._scratch.free_bytes()
        if needed_bytes > free_bytes:
            raise ExportFailed(
                f"a state of {tokens} tokens takes {needed_bytes:,} bytes, "
                f"{self._scratch.folder} has {free_bytes:,} free"
            )

    def _room(self, request: Request) -> int:
        """Return how many tokens can be sampled; the last one takes no cell."""
        context_tokens = self._capabilities.context_tokens
        if not request.prompt or request.max_tokens < 1:
            raise ValueError(
                f"a request needs a prompt and max_tokens >= 1, not "
                f"{len(request.prompt)} tokens and {request.max_tokens}"
            )
        if len(request.prompt) >= context_tokens:
            raise ContextTooLong(
                f"the prompt has {len(request.prompt)} tokens, "
                f"a slot takes {context_tokens - 1}"
            )
        return min(request.max_tokens, context_tokens - len(request.prompt))

    @asynccontextmanager
    async def _events(
        self, slot: int, request: Request, max_tokens: int
    ) -> AsyncGenerator[AsyncGenerator[Event, None], None]:
        events = self._client.complete(
            slot, request.prompt, max_tokens, request.sampling
        )
        try:
            async with aclosing(events):
                yield events
        except Refused as error:
            if error.refusal.type == "exceed_context_size_error":
                raise ContextTooLong(str(error)) from error
            raise

    @asynccontextmanager
    async def _settled(self, slot: int) -> AsyncGenerator[None, None]:
        """Make sure that after a failure or a cancellation *slot* is idle and empty."""
        try:
            yield
        except (EngineLost, ExportFailed):
            raise
        except BaseException:
            # The server answers an erase when the slot has come to rest, not before.
            with anyio.move_on_after(_SETTLE_S, shield=True), suppress(EngineLost):
                await self._client.erase(slot)
            raise

    @asynccontextmanager
    async def _saved(self, slot: int) -> AsyncGenerator[tuple[Path, Saved], None]:
        """Have the slot written to a file that is gone afterwards."""
        path = self._scratch.new_path()
        async with removed(path):
            async with self._settled(slot):
                try:
                    saved = await self._client.save(slot, path.name)
                except Refused as error:
                    raise ExportFailed(
                        f"slot {slot} can't be saved: {error}"
                    ) from error
            yield path, saved

    async def _end(self, slot: int, request: Request, transcript: Transcript) -> Chunk:
        """Return the last chunk, with whatever the stream has left out."""
        missing: tuple[int, ...] = ()
        if transcript.missing:
            missing = await self._missing_ids(slot, request, transcript)
        text = ""
        if wants_stop_strings(request.sampling):
            withheld = transcript.withheld((*transcript.streamed_ids, *missing))
            text = await self._client.detokenize(withheld) if withheld else ""
        return Chunk(token_ids=missing, text=text, finish=transcript.finish)

    async def _missing_ids(
        self, slot: int, request: Request, transcript: Transcript
    ) -> tuple[int, ...]:
        """Ask the slot for the ids that the stream did not carry."""
        known = [*request.prompt, *transcript.streamed_ids]
        held = known
        if transcript.missing > 1 or transcript.last_id is not None:
            try:
                async with self._saved(slot) as (path, _):
                    held = await in_thread(read_token_ids, path)
            except ExportFailed as error:
                raise EngineLost(f"sampled tokens are lost: {error}") from error
        expected = len(request.prompt) + transcript.sampled - 1
        if len(held) != expected or held[: len(known)] != known[:expected]:
            raise EngineLost(
                f"slot {slot} holds {len(held)} tokens, not the {expected} "
                f"that were put there"
            )
        last_id = transcript.last_id
        if last_id is None:
            # Nobody has seen that token yet, so any draw of it is the first one.
            last_id = await self._client.sample_once(slot, held, request.sampling)
        return (*held[len(known) :], last_id)


def _client(engine: Engine, silence_timeout_s: float) -> LlamaClient:
    return LlamaClient(
        engine.url, explain=engine.obituary, silence_timeout_s=silence_timeout_s
    )
