"""Parking only what is new, over many turns, between engines of different sizes.

At every turn the state that was put together from increments is compared, byte for
byte, with one that was exported at once, and the tokens with those of a session that
was never parked.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final

import httpx
import pytest
import pytest_asyncio

from kvalet.backends import Message
from kvalet.backends.llama import LlamaBackend
from kvalet.backends.llama.rows import RowLayout, cut, head_of, splice
from kvalet.backends.llama.slot_file import parse
from kvalet.state_store import KVState, MemoryStore, token_blocks
from kvalet.state_store.codec import encode_manifest

from ...turns import run_turn

pytestmark = pytest.mark.asyncio(loop_scope="module")

OUTPUT_TOKENS: Final = 12
QUESTION: Final = Message(role="user", content="List the files, then fix the test.")
RESULTS: Final = tuple(
    f"\n{number} passed, {9 - number} failed: tests/test_{number}.py\n" * number
    for number in range(1, 9)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first engine makes its folder."""
    return tmp_path_factory.mktemp("scratch")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(model_path: Path, folder: Path) -> AsyncGenerator[LlamaBackend, None]:
    """An engine with two slots, per model."""
    async with aclosing(
        await LlamaBackend.start(
            model_path=model_path, context_tokens=2560, scratch_folders=[folder]
        )
    ) as backend:
        yield backend


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wider(model_path: Path) -> AsyncGenerator[LlamaBackend, None]:
    """Another process with three slots, per model."""
    async with aclosing(
        await LlamaBackend.start(model_path=model_path, slots=3, context_tokens=2560)
    ) as backend:
        yield backend


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def inputs(backend: LlamaBackend) -> list[list[int]]:
    """The new tokens of nine turns: a question, then results of tools."""
    first = await backend.encode_chat([QUESTION])
    return [first, *[await backend.encode(result) for result in RESULTS]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(
    backend: LlamaBackend, inputs: list[list[int]]
) -> list[tuple[int, ...]]:
    """The outputs of a session that stays in its slot all the time."""
    history: list[int] = []
    outputs: list[tuple[int, ...]] = []
    for new_tokens in inputs:
        turn = await run_turn(backend, 0, history + new_tokens, OUTPUT_TOKENS)
        history += [*new_tokens, *turn.output]
        outputs.append(turn.output)
    await backend.release(0)
    assert len(set(outputs)) > 1
    return outputs


def rows_of(state: KVState) -> bytes:
    """Return all rows in order, however they are divided."""
    return b"".join(map(bytes, state.payloads))


async def saved_by(backend: LlamaBackend, slot: int, folder: Path) -> bytes:
    """Return the file that the engine itself writes."""
    async with httpx.AsyncClient(base_url=backend.url, trust_env=False) as http:
        response = await http.post(
            f"/slots/{slot}?action=save", json={"filename": "copy"}
        )
        response.raise_for_status()
    (path,) = folder.glob("*/copy")
    data = path.read_bytes()
    path.unlink()
    return data


def file_for(data: bytes, state: KVState, slot: int, held: tuple[int, ...]) -> bytes:
    """Return what an engine that writes *data* is given for *slot*."""
    streams = parse(data).streams
    learned = RowLayout(parse(data).shape, streams)
    return b"".join(map(bytes, learned.pieces(state, held, slot)))


async def test_every_file_is_the_engines_own(
    backend: LlamaBackend, folder: Path
) -> None:
    """Cut anywhere and spliced, a real file is the same again, at any length."""
    for slot, tokens in ((0, 1), (1, 127), (0, 128), (1, 129), (0, 300)):
        prompt = tuple(number * 7 % 250 for number in range(tokens))
        await backend.release(slot)
        await run_turn(backend, slot, prompt, 1)
        data = await saved_by(backend, slot, folder)
        file = parse(data)
        assert (file.live, file.sequence, file.streams) == (slot, slot, 2)
        for at in {0, tokens // 3, tokens - 1}:
            blocks = [*([(0, at)] if at else []), *token_blocks(at, tokens)]
            rows = cut(data, file, blocks)
            pieces = splice(head_of(file), file.token_ids, rows)
            assert b"".join(map(bytes, pieces)) == data
    await backend.release(0)
    await backend.release(1)


async def test_nine_turns_of_new_rows(
    backend: LlamaBackend,
    folder: Path,
    inputs: list[list[int]],
    reference: list[tuple[int, ...]],
) -> None:
    """Only new rows are parked, in changing slots; bytes and tokens are the same."""
    store = MemoryStore(None)
    history: tuple[int, ...] = ()
    parked = 0
    for number, new_tokens in enumerate(inputs):
        slot = number % 2
        turn = await run_turn(backend, slot, (*history, *new_tokens), OUTPUT_TOKENS)
        assert turn.output == reference[number]
        history = (*history, *new_tokens, *turn.output)
        more = await backend.export_kv(slot, "k", turn.held, first_token=parked)
        assert more.manifest.first_token == parked
        assert more.manifest.token_count == len(turn.held)
        at_once = await backend.export_kv(slot, "k", turn.held)
        await store.park(more)
        state, _ = await store.fetch("k")
        assert rows_of(state) == rows_of(at_once)
        assert state.manifest.kv_bytes == at_once.manifest.kv_bytes
        data = await saved_by(backend, slot, folder)
        assert file_for(data, state, slot, turn.held) == data
        await backend.release(slot)
        await backend.import_kv(1 - slot, state, turn.held)
        restored = await saved_by(backend, 1 - slot, folder)
        assert restored == file_for(data, state, 1 - slot, turn.held)
        parked = len(turn.held)
    await backend.release(0)
    await backend.release(1)


async def test_another_number_of_slots_changes_no_token(
    backend: LlamaBackend,
    wider: LlamaBackend,
    inputs: list[list[int]],
    reference: list[tuple[int, ...]],
) -> None:
    """From two slots to three in another process, and back, at every turn."""
    engines, slots = (backend, wider), (0, 2, 1, 0)
    state: KVState | None = None
    history: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    for number, new_tokens in enumerate(inputs):
        engine, slot = engines[number % 2], slots[number % 4]
        if state is not None:
            await engine.import_kv(slot, state, held)
        turn = await run_turn(engine, slot, (*history, *new_tokens), OUTPUT_TOKENS)
        assert turn.output == reference[number]
        assert turn.prefilled.reused_tokens == len(held)
        history = (*history, *new_tokens, *turn.output)
        more = await engine.export_kv(slot, "k", turn.held, first_token=len(held))
        state = more.behind(state) if state is not None else more
        held = turn.held
        await engine.release(slot)


async def test_an_increment_moves_what_is_new(tiny_gguf: Path) -> None:
    """600 tokens on 1,624 move at most 1.02 times their own rows, manifest included."""
    prompt = tuple(number * 7 % 250 for number in range(1624 + 600))
    async with aclosing(
        await LlamaBackend.start(model_path=tiny_gguf, context_tokens=2560)
    ) as backend:
        await run_turn(backend, 0, prompt[:1624], 1)
        base = await backend.export_kv(0, "k", prompt[:1624])
        await run_turn(backend, 0, prompt, 1)
        more = await backend.export_kv(0, "k", prompt, first_token=1624)
    assert more.manifest.continues(base.manifest)
    moved_bytes = sum(map(len, more.payloads)) + len(encode_manifest(more.manifest))
    new_bytes = 600 * backend.capabilities.bytes_per_token
    assert more.manifest.kv_bytes == new_bytes
    assert moved_bytes <= 1.02 * new_bytes


async def test_a_leading_part_restores(backend: LlamaBackend) -> None:
    """What a slot held some tokens ago gives the tokens that it gave then."""
    prompt = tuple(number * 7 % 250 for number in range(300))
    for leading in (199, 128):
        await run_turn(backend, 0, prompt[:leading], 1)
        expected = await run_turn(backend, 0, prompt[:200], OUTPUT_TOKENS)
        await run_turn(backend, 0, prompt, 1)
        if leading == 128:
            whole = await backend.export_kv(0, "k", prompt)
            part = whole.leading(leading)
        else:
            part = await backend.export_kv(0, "k", prompt[:leading])
        await backend.import_kv(1, part, prompt[:leading])
        turn = await run_turn(backend, 1, prompt[:200], OUTPUT_TOKENS)
        assert turn.prefilled.reused_tokens == leading
        assert turn.output == expected.output
        await backend.release(0)
        await backend.release(1)
