"""Slot files that can't be cut into rows: whole, or not at all."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from kvalet.backends import ExportFailed, ImportRefused
from kvalet.backends.llama import LlamaBackend
from kvalet.backends.llama.engine import Engine, EngineSettings
from kvalet.backends.llama.layout import Learned, layout_of
from kvalet.backends.llama.scratch import Scratch
from kvalet.backends.llama.slot_file import BadSlotFile
from kvalet.backends.llama.whole import WholeLayout
from kvalet.state_store import KVState, MemoryStore

from ...turns import run_turn
from .slot_files import slot_file

PROMPT = tuple(number * 7 % 250 for number in range(1, 60))
TOKENS = (0, 0, 0)


def test_what_is_known_is_parked_by_rows() -> None:
    """A file of version 4 that lists what was put in, transposed or not."""
    for transposed in (0, 1):
        learned = layout_of(slot_file(TOKENS, transposed=transposed), 2)
        assert learned.layout.exports_rows and not learned.note


@pytest.mark.parametrize(
    ("data", "sentence", "name"),
    [
        (slot_file(TOKENS, version=5), "version 5, only 4", "5;whole;streams=2"),
        (slot_file(TOKENS) + b"more", "4 bytes after", "4;whole;streams=2"),
        (slot_file(TOKENS, streams=3), "3 streams", "4;whole;streams=2"),
        (slot_file((0, 0, 1)), "other tokens", "4;whole;streams=2"),
        (b"GGUF, or anything", "the magic 'ggsq'", "unknown;whole;streams=2"),
        (b"", "ends at byte 0", "unknown;whole;streams=2"),
    ],
)
def test_what_is_not_known_is_parked_whole(
    data: bytes, sentence: str, name: str
) -> None:
    """The user reads once what was found; the name says the version and the slots."""
    learned = layout_of(data, 2)
    assert not learned.layout.exports_rows
    assert learned.note.startswith("state is parked whole") and sentence in learned.note
    assert learned.layout.name == f"llama-slot-file/{name}"


def file_of_version_5(tokens: int) -> bytes:
    """Return a file whose rows nobody knows."""
    return slot_file((), version=5)[:12] + np.random.default_rng(1).bytes(tokens * 900)


def sealed(layout: WholeLayout, data: bytes, token_ids: range) -> KVState:
    """Return the state that is parked."""
    cut = layout.cut(data, token_ids, 0)
    return KVState.seal_segments(
        key="k",
        model="m",
        engine="e",
        layout=layout.name,
        head=cut.head,
        token_ids=token_ids,
        ends=cut.ends,
        payloads=cut.payloads,
    )


@pytest.mark.asyncio
async def test_a_growing_file_is_stored_little_of_again() -> None:
    """No part of it is a state, but what is known of it is stored once."""
    layout = WholeLayout(version=5, streams=2)
    store = MemoryStore(None)
    for tokens in (500, 600):
        state = sealed(layout, file_of_version_5(tokens), range(tokens))
        assert len(state.payloads) > 10
        assert state.leading(400) == state
        await store.park(replace_key(state, f"k{tokens}"))
    stored_bytes = (await store.stat()).stored_bytes
    assert stored_bytes < 600 * 900 + 2 * 64 * 1024
    state, _ = await store.fetch("k600")
    pieces = layout.pieces(state, range(600), 1)
    assert b"".join(map(bytes, pieces)) == file_of_version_5(600)


def replace_key(state: KVState, key: str) -> KVState:
    """Return the same state under another key."""
    return replace(state, manifest=replace(state.manifest, key=key))


def test_rows_can_not_be_left_out() -> None:
    """A continuation of such a file does not exist."""
    with pytest.raises(BadSlotFile, match="not the tokens before 2"):
        WholeLayout(version=5, streams=2).cut(file_of_version_5(3), range(3), 2)


def test_another_version_is_refused() -> None:
    """The engine is never given what it did not write like that."""
    state = sealed(WholeLayout(version=5, streams=2), file_of_version_5(3), range(3))
    with pytest.raises(ImportRefused, match="version 5"):
        WholeLayout(version=6, streams=2).pieces(state, range(3), 0)


@pytest_asyncio.fixture
async def backend(tiny_gguf: Path) -> AsyncGenerator[LlamaBackend, None]:
    """A real engine, of which nobody has understood the format."""
    settings = EngineSettings(
        model_path=tiny_gguf,
        slots=2,
        context_tokens=1024,
        threads=1,
        batch_tokens=512,
        port=0,
        start_timeout_s=60,
    )
    scratch = Scratch.create(1 << 20)
    async with aclosing(
        LlamaBackend(
            settings=settings,
            bytes_per_token=256,
            fingerprint="sha256:tiny",
            scratch=scratch,
            engine=await Engine.start(settings, scratch.folder),
            learned=Learned(layout=WholeLayout(version=4, streams=2), note="whole"),
            silence_timeout_s=60,
        )
    ) as backend:
        yield backend


@pytest.mark.asyncio
async def test_a_whole_file_restores_on_a_real_engine(backend: LlamaBackend) -> None:
    """The same tokens as without parking, in the other slot too."""
    assert backend.notes == ("whole",)
    assert not backend.capabilities.exports_rows
    turn = await run_turn(backend, 0, PROMPT, 5)
    state = await backend.export_kv(0, "k", turn.held)
    expected = await run_turn(backend, 0, (*turn.held, *PROMPT), 8)
    await backend.import_kv(1, state, turn.held)
    again = await run_turn(backend, 1, (*turn.held, *PROMPT), 8)
    assert again.prefilled.reused_tokens == len(turn.held)
    assert again.output == expected.output


@pytest.mark.asyncio
async def test_a_part_of_a_whole_file_is_not_handed_out(backend: LlamaBackend) -> None:
    """Exactly what the slot holds, from the first token on."""
    turn = await run_turn(backend, 0, PROMPT, 5)
    with pytest.raises(ExportFailed, match=f"{len(turn.held)} tokens, not"):
        await backend.export_kv(0, "k", turn.held[:-1])
    with pytest.raises(ExportFailed, match="not the tokens before 5"):
        await backend.export_kv(0, "k", turn.held, first_token=5)
    state = await backend.export_kv(0, "k", turn.held)
    short = replace(state, payloads=(*state.payloads[:-1], state.payloads[-1][:-1]))
    with pytest.raises(ImportRefused, match="its manifest says"):
        await backend.import_kv(0, short, turn.held)
