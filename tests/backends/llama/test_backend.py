"""What the embedded engine does beyond the contract, on a real server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import pytest_asyncio

from kvalet.backends import (
    BackendError,
    ContextTooLong,
    EngineLost,
    ExportFailed,
    FinishReason,
    ImportRefused,
    Message,
    Request,
    Sampling,
    Tokenizer,
)
from kvalet.backends.llama import LlamaBackend
from kvalet.state_store import KVState

from ...tiny_model import END_OF_TEXT, END_OF_TURN
from ...turns import EXACT, run_turn

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = tuple(number * 7 % 250 for number in range(1, 60))
CONTEXT_TOKENS = 1024


@pytest.fixture(scope="module")
def scratch_parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared engine makes its folder."""
    return tmp_path_factory.mktemp("scratch")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    tiny_gguf: Path, scratch_parent: Path
) -> AsyncGenerator[LlamaBackend, None]:
    """One engine for the whole file."""
    async with aclosing(
        await LlamaBackend.start(
            model_path=tiny_gguf,
            context_tokens=CONTEXT_TOKENS,
            scratch_folders=[scratch_parent],
        )
    ) as backend:
        yield backend


@pytest_asyncio.fixture(loop_scope="module")
async def backend(shared: LlamaBackend) -> LlamaBackend:
    """The shared engine with empty slots."""
    await shared.release(0)
    await shared.release(1)
    return shared


async def ask(backend: LlamaBackend, method: str, path: str, **body: Any) -> Any:
    """Ask the server itself."""
    async with httpx.AsyncClient(base_url=backend.url, trust_env=False) as http:
        response = await http.request(method, path, json=body or None)
        response.raise_for_status()
        return response.json()


async def is_busy(backend: LlamaBackend, slot: int) -> bool:
    """Return whether the server works on *slot*."""
    return bool((await ask(backend, "GET", "/slots"))[slot]["is_processing"])


def files(folder: Path) -> list[Path]:
    """Return every file below *folder* but its owner's lock."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if path.name != ".owner"]


@pytest.mark.parametrize("start", [0, 1, 2, 3])
@pytest.mark.parametrize("length", [2, 3, 4, 5, 7, 40])
async def test_no_token_id_is_lost(
    backend: LlamaBackend, start: int, length: int
) -> None:
    """Ids are complete and in order though the stream omits those inside characters."""
    prompt = PROMPT[start:]
    turn = await run_turn(backend, 0, prompt, length)
    whole = await ask(
        backend,
        "POST",
        "/completion",
        prompt=prompt,
        n_predict=length,
        id_slot=1,
        temperature=0,
        ignore_eos=True,
        return_tokens=True,
    )
    assert list(turn.output) == whole["tokens"]
    await backend.export_kv(0, "k", turn.held)


async def test_the_end_of_a_turn_is_part_of_the_output(backend: LlamaBackend) -> None:
    """A model that stops by itself says STOP, and its last token is the end token."""
    turn = await run_turn(backend, 0, PROMPT, 900, Sampling())
    assert turn.finish is FinishReason.STOP
    assert turn.output[-1] in (END_OF_TEXT, END_OF_TURN)
    await backend.export_kv(0, "k", turn.held)


async def test_an_end_right_after_the_prompt(backend: LlamaBackend) -> None:
    """Where the first token ends the turn, prefill says so and decode has nothing."""
    turn = await run_turn(backend, 0, PROMPT, 900, Sampling())
    request = Request(prompt=turn.held, max_tokens=900)
    prefilled = await backend.prefill(0, request)
    assert prefilled.first is not None
    assert prefilled.first.finish is FinishReason.STOP
    assert prefilled.first.token_ids == turn.output[-1:]
    assert [chunk async for chunk in backend.decode(0, request, prefilled)] == []


async def test_ignore_stop_goes_on(backend: LlamaBackend) -> None:
    """With ignore_stop neither end tokens nor stop strings end a turn."""
    ended = await run_turn(backend, 0, PROMPT, 900, Sampling())
    text = ended.text
    sampling = Sampling(ignore_stop=True, stop=(text[5], text[9]))
    turn = await run_turn(backend, 1, PROMPT, len(ended.output) + 3, sampling)
    assert len(turn.output) == len(ended.output) + 3
    assert turn.finish is FinishReason.LENGTH


def ascii_pair(text: str) -> int:
    """Return where two plain characters follow each other for the first time."""
    return next(
        at
        for at in range(1, len(text))
        if text[at : at + 2].isascii() and text.find(text[at : at + 2]) == at
    )


async def test_a_stop_string_ends_the_turn(backend: LlamaBackend) -> None:
    """The text ends before the stop string, though two tokens made it."""
    text = (await run_turn(backend, 0, PROMPT, 30)).text
    at = ascii_pair(text)
    sampling = Sampling(stop=(text[at : at + 2],))
    turn = await run_turn(backend, 1, PROMPT, 30, sampling)
    assert turn.finish is FinishReason.STOP
    assert turn.text == text[:at]
    await backend.export_kv(1, "k", turn.held)


async def test_a_stop_string_across_the_first_token(backend: LlamaBackend) -> None:
    """A stop string is found though prefill sampled its beginning."""
    turn = await run_turn(backend, 0, PROMPT, 30)
    at = ascii_pair(turn.text)
    # Everything up to one token before the pair becomes the prompt.
    pair = turn.text[at : at + 2].encode()
    ids = bytes(token if token < 256 else 0 for token in turn.output)
    prompt = (*PROMPT, *turn.output[: ids.index(pair)])
    sampling = Sampling(stop=(pair.decode(),))
    stopped = await run_turn(backend, 1, prompt, 30, sampling)
    assert stopped.prefilled.first is None
    assert (stopped.text, stopped.finish) == ("", FinishReason.STOP)
    assert stopped.output == tuple(pair)


async def test_text_that_only_began_like_a_stop_string(backend: LlamaBackend) -> None:
    """What the server withholds as a possible stop string comes with the last chunk."""
    turn = await run_turn(backend, 0, PROMPT, 30)
    length, character = next(
        (at + 1, chr(token)) for at, token in enumerate(turn.output) if 32 < token < 127
    )
    sampling = Sampling(stop=(character + "\0never\0",))
    short = await run_turn(backend, 1, PROMPT, length, sampling)
    assert short.finish is FinishReason.LENGTH
    assert short.text.endswith(character)
    assert short.output == turn.output[:length]


async def test_a_seed_repeats(backend: LlamaBackend) -> None:
    """The same seed draws the same tokens, another seed others."""
    outputs: list[tuple[int, ...]] = []
    for seed in (7, 7, 8):
        await backend.release(0)
        sampling = replace(EXACT, temperature=1.0, seed=seed)
        outputs.append((await run_turn(backend, 0, PROMPT, 12, sampling)).output)
    assert outputs[0] == outputs[1] != outputs[2]


async def test_output_ends_with_the_context(backend: LlamaBackend) -> None:
    """A turn stops with LENGTH when the slot is full, and can be exported then."""
    prompt = (PROMPT * 20)[: CONTEXT_TOKENS - 5]
    turn = await run_turn(backend, 0, prompt, 100)
    assert len(turn.output) == 5
    assert turn.finish is FinishReason.LENGTH
    await backend.export_kv(0, "k", turn.held)


async def test_the_last_place_of_the_context(backend: LlamaBackend) -> None:
    """A prompt that leaves one place gives one token; a longer one is refused."""
    prompt = (PROMPT * 20)[: CONTEXT_TOKENS - 1]
    turn = await run_turn(backend, 0, prompt, 100)
    assert (len(turn.output), turn.finish) == (1, FinishReason.LENGTH)
    with pytest.raises(ContextTooLong, match=f"{CONTEXT_TOKENS} tokens"):
        await run_turn(backend, 0, (*prompt, 1), 100)


@pytest.mark.parametrize("slot", [-1, 2, 99])
async def test_a_slot_that_does_not_exist(backend: LlamaBackend, slot: int) -> None:
    """The server would silently take another slot; the backend refuses."""
    with pytest.raises(ValueError, match=f"slot {slot} was named"):
        await backend.release(slot)


async def test_a_short_state_never_reaches_the_engine(backend: LlamaBackend) -> None:
    """Short rows under an honest manifest are refused; the engine lives on."""
    turn = await run_turn(backend, 0, PROMPT, 5)
    whole = await backend.export_kv(0, "k", turn.held)
    short = KVState.seal(
        key="k",
        model=whole.manifest.model,
        engine=whole.manifest.engine,
        layout=whole.manifest.layout,
        head=whole.manifest.head,
        token_ids=turn.held,
        payload=whole.payloads[0][:-100],
    )
    with pytest.raises(ImportRefused, match=f"bytes for the {len(turn.held)} tokens"):
        await backend.import_kv(0, short, turn.held)
    again = await run_turn(backend, 0, PROMPT, 5)
    assert again.prefilled.reused_tokens == 0
    assert again.output == turn.output


@pytest.mark.model
async def test_rows_of_another_model_are_refused(
    backend: LlamaBackend, default_model: Path
) -> None:
    """Its head says so, even if the manifest claims to be of this model."""
    turn = await run_turn(backend, 0, PROMPT, 5)
    whole = await backend.export_kv(0, "k", turn.held)
    async with aclosing(
        await LlamaBackend.start(model_path=default_model, context_tokens=256)
    ) as other:
        theirs = await run_turn(other, 0, PROMPT, 5)
        foreign = await other.export_kv(0, "k", theirs.held)
    names = replace(foreign.manifest, model=whole.manifest.model)
    with pytest.raises(ImportRefused, match=r"23040 bytes in 30 .* 256 bytes in 2"):
        await backend.import_kv(0, replace(foreign, manifest=names), theirs.held)


async def test_what_the_server_refuses_is_refused(
    backend: LlamaBackend, tiny_gguf: Path
) -> None:
    """A sound state that is longer than a slot leaves an empty slot as well."""
    turn = await run_turn(backend, 0, PROMPT * 10, 5)
    state = await backend.export_kv(0, "k", turn.held)
    async with aclosing(
        await LlamaBackend.start(model_path=tiny_gguf, context_tokens=256)
    ) as other:
        with pytest.raises(ImportRefused, match=r"the engine refused: .*No available"):
            await other.import_kv(0, state, turn.held)
        again = await run_turn(other, 0, PROMPT, 5)
        assert again.prefilled.reused_tokens == 0
        assert again.output == (await run_turn(backend, 1, PROMPT, 5)).output


async def test_a_cancelled_prefill_returns_when_the_slot_is_idle(
    tiny_gguf: Path,
) -> None:
    """Nothing is computed for a cancelled call once it has returned."""
    async with aclosing(
        await LlamaBackend.start(model_path=tiny_gguf, context_tokens=8192)
    ) as backend:
        request = Request(prompt=PROMPT * 130, max_tokens=1)
        with anyio.move_on_after(0.05) as scope:
            await backend.prefill(0, request)
        assert scope.cancelled_caught
        assert not await is_busy(backend, 0)


async def test_an_abandoned_decode_returns_when_the_slot_is_idle(
    backend: LlamaBackend,
) -> None:
    """Closing the iterator stops the server before the call returns."""
    request = Request(prompt=PROMPT, max_tokens=900, sampling=EXACT)
    prefilled = await backend.prefill(0, request)
    async with aclosing(backend.decode(0, request, prefilled)) as chunks:
        async for _ in chunks:
            break
    assert not await is_busy(backend, 0)


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.002, 0.004])
async def test_no_slot_file_is_left_behind(
    backend: LlamaBackend, scratch_parent: Path, after_s: float
) -> None:
    """Files are gone after an export, an import, a refusal and a cancellation."""
    turn = await run_turn(backend, 0, PROMPT, 5)
    state = await backend.export_kv(0, "k", turn.held)
    with pytest.raises(ImportRefused):
        await backend.import_kv(1, state, PROMPT)
    with pytest.raises(ExportFailed):
        await backend.export_kv(0, "k", (*turn.held, 1))
    for move in (
        backend.import_kv(1, state, turn.held),
        backend.export_kv(0, "k", turn.held),
    ):
        task = asyncio.ensure_future(move)
        await asyncio.wait([task], timeout=after_s)
        task.cancel()
        await asyncio.wait([task])
    assert files(scratch_parent) == []


async def test_a_state_that_does_not_fit_the_folder(backend: LlamaBackend) -> None:
    """Too little space is noticed before the server runs into it."""
    with pytest.raises(ExportFailed, match=r"has [0-9,]+ free"):
        await backend.export_kv(0, "k", range(10**15))


async def test_tokens_that_the_model_does_not_have(backend: LlamaBackend) -> None:
    """A request that the server refuses is an error of that request alone."""
    with pytest.raises(BackendError, match="invalid tokens") as caught:
        await backend.prefill(0, Request(prompt=[100_000], max_tokens=1))
    assert not isinstance(caught.value, EngineLost)
    assert len((await run_turn(backend, 0, PROMPT, 2)).output) == 2


async def test_text_is_only_text(backend: LlamaBackend) -> None:
    """Encoding a text never yields a special token, whatever it looks like."""
    assert isinstance(backend, Tokenizer)
    assert await backend.encode("hi") == [104, 105]
    assert END_OF_TURN not in await backend.encode("<|im_end|>")


async def test_a_chat_uses_the_models_template(backend: LlamaBackend) -> None:
    """Roles become the template's special tokens, and the assistant is next."""
    chat = [Message(role="system", content="a"), Message(role="user", content="b")]
    ids = await backend.encode_chat(chat)
    assert ids.count(END_OF_TURN) == 2
    assert bytes(token for token in ids if token < 256).endswith(b"assistant\n")


async def test_one_process_is_the_engines(backend: LlamaBackend) -> None:
    """Its memory can be told from the runtime's."""
    (process_id,) = backend.process_ids()
    assert Path(f"/proc/{process_id}/status").exists()


async def test_the_fingerprint_names_the_weights(backend: LlamaBackend) -> None:
    """States are marked with the sha256 of the model file."""
    assert backend.fingerprint.startswith("sha256:")
    turn = await run_turn(backend, 0, PROMPT, 2)
    state = await backend.export_kv(0, "k", turn.held)
    assert state.manifest.model == backend.fingerprint
