"""What every backend promises, run on each of them.

A new backend joins with one line in ``BACKENDS``: an async context that yields a fresh
one with at least two slots and 1024 tokens of context. Tests share it, so each empties
the slots that it uses.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

from kvalet.backends import (
    Accelerator,
    Backend,
    ContextTooLong,
    ExportFailed,
    FinishReason,
    ImportRefused,
    Request,
    SimulatedBackend,
)
from kvalet.backends.llama import LlamaBackend
from kvalet.state_store import KVState, hash_token_ids

from ..turns import EXACT, run_turn

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = tuple(number * 7 % 250 for number in range(60))
OTHER = tuple(number * 11 % 250 for number in range(50))

Factory = Callable[[Path], AbstractAsyncContextManager[Backend]]


@asynccontextmanager
async def llama(model_path: Path) -> AsyncGenerator[Backend, None]:
    """Yield a real engine on a tiny model."""
    async with aclosing(
        await LlamaBackend.start(model_path=model_path, context_tokens=1024)
    ) as backend:
        yield backend


@asynccontextmanager
async def simulated(model_path: Path) -> AsyncGenerator[Backend, None]:
    """Yield an accelerator that takes next to no time."""
    quick = Accelerator(
        prefill_token_s=1e-6,
        prefill_context_s=0,
        decode_step_s=1e-4,
        decode_sequence_s=0,
        decode_context_s=0,
        copy_setup_s=0,
    )
    backend = SimulatedBackend(accelerator=quick, slots=2, context_tokens=1024)
    async with aclosing(backend):
        yield backend


BACKENDS: dict[str, Factory] = {"llama": llama, "simulated": simulated}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS)
async def shared(
    request: pytest.FixtureRequest, tiny_gguf: Path
) -> AsyncGenerator[Backend, None]:
    """One backend of each kind for the whole file."""
    async with BACKENDS[request.param](tiny_gguf) as backend:
        yield backend


@pytest_asyncio.fixture(loop_scope="module")
async def backend(shared: Backend) -> Backend:
    """The shared backend with slots 0 and 1 empty."""
    await shared.release(0)
    await shared.release(1)
    return shared


async def parked(backend: Backend, key: str = "k") -> tuple[KVState, tuple[int, ...]]:
    """Run a turn on slot 0, export it and release the slot."""
    turn = await run_turn(backend, 0, PROMPT, 5)
    state = await backend.export_kv(0, key, turn.held)
    await backend.release(0)
    return state, turn.held


async def test_it_is_a_backend(backend: Backend) -> None:
    """It has the protocol's methods and room for the tests below."""
    assert isinstance(backend, Backend)
    assert backend.capabilities.slots >= 2
    assert backend.capabilities.context_tokens >= 1024


async def test_prefill_accounts_for_the_whole_prompt(backend: Backend) -> None:
    """Computed and reused tokens add up to the prompt; an empty slot reuses none."""
    prefilled = await backend.prefill(0, Request(prompt=PROMPT, max_tokens=4))
    assert prefilled.computed_tokens == len(PROMPT)
    assert prefilled.reused_tokens == 0
    assert prefilled.busy_s > 0


async def test_a_turn_has_exactly_the_tokens_asked_for(backend: Backend) -> None:
    """With ignore_stop the output is max_tokens long and ends with LENGTH."""
    turn = await run_turn(backend, 0, PROMPT, 12)
    assert len(turn.output) == 12
    assert turn.finish is FinishReason.LENGTH
    assert all(chunk.finish is None for chunk in turn.chunks[:-1])


async def test_a_turn_of_one_token(backend: Backend) -> None:
    """max_tokens 1 is one token, and finished."""
    turn = await run_turn(backend, 0, PROMPT, 1)
    assert len(turn.output) == 1
    assert turn.finish is FinishReason.LENGTH


async def test_greedy_output_depends_on_nothing_else(backend: Backend) -> None:
    """The same prompt gives the same tokens again, on either slot."""
    first = await run_turn(backend, 0, PROMPT, 8)
    again = await run_turn(backend, 1, PROMPT, 8)
    assert first.output == again.output


async def test_the_next_turn_reuses_what_the_slot_holds(backend: Backend) -> None:
    """All but the last sampled token of a turn needs no second computation."""
    turn = await run_turn(backend, 0, PROMPT, 5)
    prompt = (*PROMPT, *turn.output, *OTHER)
    following = await run_turn(backend, 0, prompt, 5)
    assert following.prefilled.reused_tokens == len(turn.held)
    assert following.prefilled.computed_tokens == len(prompt) - len(turn.held)


async def test_slots_do_not_touch_each_other(backend: Backend) -> None:
    """Work on one slot leaves the other's state as it was."""
    turn = await run_turn(backend, 0, PROMPT, 5)
    await run_turn(backend, 1, OTHER, 5)
    await backend.release(1)
    following = await run_turn(backend, 0, (*PROMPT, *turn.output), 5)
    assert following.prefilled.reused_tokens == len(turn.held)


async def test_slots_work_at_the_same_time(backend: Backend) -> None:
    """Two turns side by side both get their tokens."""
    turns = await asyncio.gather(
        run_turn(backend, 0, PROMPT, 8), run_turn(backend, 1, OTHER, 8)
    )
    assert [len(turn.output) for turn in turns] == [8, 8]


async def test_release_empties_the_slot(backend: Backend) -> None:
    """Nothing of a released slot is reused; releasing again is no error."""
    await run_turn(backend, 0, PROMPT, 5)
    await backend.release(0)
    await backend.release(0)
    turn = await run_turn(backend, 0, PROMPT, 5)
    assert turn.prefilled.reused_tokens == 0


async def test_a_prompt_beyond_the_context_is_refused(backend: Backend) -> None:
    """ContextTooLong comes before any work, and the slot can be used afterwards."""
    prompt = [1] * backend.capabilities.context_tokens
    with pytest.raises(ContextTooLong):
        await backend.prefill(0, Request(prompt=prompt, max_tokens=1))
    assert len((await run_turn(backend, 0, PROMPT, 2)).output) == 2


async def test_export_describes_the_state(backend: Backend) -> None:
    """The manifest names key, tokens and bytes, and the payload verifies."""
    state, held = await parked(backend, "lane 7")
    state.verify()
    assert state.manifest.key == "lane 7"
    assert state.manifest.token_count == len(held)
    assert state.manifest.token_hash == hash_token_ids(held)
    least_bytes = len(held) * backend.capabilities.bytes_per_token
    assert state.manifest.kv_bytes >= least_bytes


async def test_export_leaves_the_slot_as_it_is(backend: Backend) -> None:
    """After an export the next turn reuses everything."""
    turn = await run_turn(backend, 0, PROMPT, 5)
    await backend.export_kv(0, "k", turn.held)
    following = await run_turn(backend, 0, (*PROMPT, *turn.output), 5)
    assert following.prefilled.reused_tokens == len(turn.held)


@pytest.mark.parametrize("change", ["shorter", "longer", "different"])
async def test_export_of_other_tokens_fails(backend: Backend, change: str) -> None:
    """What the slot does not hold is not handed out; a part is, if it can be cut."""
    held = (await run_turn(backend, 0, PROMPT, 5)).held
    claimed = {
        "shorter": held[:-1],
        "longer": (*held, 1),
        "different": (held[0] + 1, *held[1:]),
    }[change]
    if change == "shorter" and backend.capabilities.exports_rows:
        part = await backend.export_kv(0, "k", claimed)
        assert part.manifest.token_count == len(claimed)
        return
    with pytest.raises(ExportFailed):
        await backend.export_kv(0, "k", claimed)


@pytest.mark.parametrize("slot", [0, 1])
async def test_an_imported_state_is_used(backend: Backend, slot: int) -> None:
    """After an import, into either slot, the next prefill reuses all of it."""
    state, held = await parked(backend)
    await backend.import_kv(slot, state, held)
    turn = await run_turn(backend, slot, (*held, *OTHER), 5)
    assert turn.prefilled.reused_tokens == len(held)


async def test_an_imported_state_can_be_exported(backend: Backend) -> None:
    """Export after import describes the same tokens."""
    state, held = await parked(backend)
    await backend.import_kv(1, state, held)
    again = await backend.export_kv(1, "k", held)
    assert again.manifest.token_hash == state.manifest.token_hash
    assert again.manifest.kv_bytes == state.manifest.kv_bytes


@pytest.mark.parametrize("name", ["model", "engine", "layout"])
async def test_a_foreign_state_is_refused(backend: Backend, name: str) -> None:
    """A state of another model, engine or layout leaves the slot empty."""
    state, held = await parked(backend)
    manifest = {
        "model": replace(state.manifest, model="other"),
        "engine": replace(state.manifest, engine="other"),
        "layout": replace(state.manifest, layout="other"),
    }[name]
    foreign = replace(state, manifest=manifest)
    await run_turn(backend, 0, PROMPT, 5)
    with pytest.raises(ImportRefused, match="other"):
        await backend.import_kv(0, foreign, held)
    turn = await run_turn(backend, 0, PROMPT, 2)
    assert turn.prefilled.reused_tokens == 0


async def test_a_state_of_other_tokens_is_refused(backend: Backend) -> None:
    """A state is loaded only for exactly its own tokens."""
    state, held = await parked(backend)
    with pytest.raises(ImportRefused):
        await backend.import_kv(0, state, (held[0] + 1, *held[1:]))
    with pytest.raises(ImportRefused):
        await backend.import_kv(0, state, held[:-1])
    turn = await run_turn(backend, 0, PROMPT, 2)
    assert turn.prefilled.reused_tokens == 0


async def test_a_corrupt_state_is_refused(backend: Backend) -> None:
    """Payloads that fail verification leave the slot empty."""
    state, held = await parked(backend)
    corrupt = replace(state, payloads=(*state.payloads, b"more"))
    with pytest.raises(ImportRefused):
        await backend.import_kv(0, corrupt, held)
    turn = await run_turn(backend, 0, PROMPT, 2)
    assert turn.prefilled.reused_tokens == 0


@pytest.mark.parametrize("after_s", [0.0, 0.003, 0.03])
async def test_a_cancelled_prefill_frees_the_slot(
    backend: Backend, after_s: float
) -> None:
    """Whenever it is cancelled, the released slot works as if nothing had been."""
    expected = await run_turn(backend, 0, PROMPT, 5)
    await backend.release(0)
    with anyio.move_on_after(after_s):
        await backend.prefill(0, Request(prompt=OTHER * 19, max_tokens=5))
    await backend.release(0)
    assert await repeats(backend, 0, expected.output)


async def test_an_abandoned_decode_frees_the_slot(backend: Backend) -> None:
    """A decode that is closed early leaves a slot that works after its release."""
    expected = await run_turn(backend, 0, PROMPT, 5)
    request = Request(prompt=PROMPT, max_tokens=900, sampling=EXACT)
    prefilled = await backend.prefill(0, request)
    with anyio.move_on_after(0.01):
        async for _ in backend.decode(0, request, prefilled):
            pass
    await backend.release(0)
    assert await repeats(backend, 0, expected.output)


async def test_a_cancelled_task_frees_the_slot(backend: Backend) -> None:
    """asyncio's own cancellation is no different."""
    expected = await run_turn(backend, 0, PROMPT, 5)
    await backend.release(0)
    task = asyncio.create_task(run_turn(backend, 0, OTHER, 900))
    await asyncio.wait([task], timeout=0.02)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await backend.release(0)
    assert await repeats(backend, 0, expected.output)


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.004])
async def test_a_cancelled_move_frees_the_slot(
    backend: Backend, after_s: float
) -> None:
    """An import or export cut short leaves a slot that works after its release."""
    state, held = await parked(backend)
    with anyio.move_on_after(after_s):
        await backend.import_kv(0, state, held)
        await backend.export_kv(0, "k", held)
    await backend.release(0)
    assert len((await run_turn(backend, 0, PROMPT, 5)).output) == 5


async def repeats(backend: Backend, slot: int, output: tuple[int, ...]) -> bool:
    """Return whether an empty *slot* gives *output* for PROMPT."""
    turn = await run_turn(backend, slot, PROMPT, len(output))
    return turn.prefilled.reused_tokens == 0 and turn.output == output
