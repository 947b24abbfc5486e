"""Starting, losing and stopping the child process."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kvalet.backends import EngineLost, EngineStartError, Request
from kvalet.backends.llama import LlamaBackend
from kvalet.backends.llama.engine import check_size
from kvalet.backends.llama.gguf import ModelHeader

from ...turns import EXACT, run_turn

pytestmark = pytest.mark.asyncio

PROMPT = tuple(range(1, 60))


@pytest_asyncio.fixture
async def backend(
    tiny_gguf: Path, tmp_path: Path
) -> AsyncGenerator[LlamaBackend, None]:
    """An engine that a test may ruin."""
    async with aclosing(
        await LlamaBackend.start(
            model_path=tiny_gguf, context_tokens=8192, scratch_folders=[tmp_path]
        )
    ) as backend:
        yield backend


def kill(backend: LlamaBackend) -> None:
    """End the engine as the kernel would when memory runs out."""
    (process_id,) = backend.process_ids()
    os.kill(process_id, signal.SIGKILL)


async def test_a_missing_model(tmp_path: Path) -> None:
    """The path is in the sentence."""
    with pytest.raises(EngineStartError, match=r"no\.gguf does not exist"):
        await LlamaBackend.start(model_path=tmp_path / "no.gguf")


async def test_a_model_that_is_a_folder(tmp_path: Path) -> None:
    """What can't be opened is a sentence as well."""
    with pytest.raises(EngineStartError, match="the model can't be read"):
        await LlamaBackend.start(model_path=tmp_path)


async def test_a_model_that_is_no_gguf(tmp_path: Path) -> None:
    """The magic is checked before any engine is started."""
    path = tmp_path / "model.bin"
    path.write_bytes(b"PK\3\4 something else")
    with pytest.raises(EngineStartError, match=r"model\.bin is not a GGUF file"):
        await LlamaBackend.start(model_path=path)


async def test_a_model_that_is_cut_off(tmp_path: Path, tiny_gguf: Path) -> None:
    """A good header without its tensors fails in the engine, with its own words."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf.read_bytes()[:-1000])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(EngineStartError, match=r"can't start: .*incomplete"):
        await LlamaBackend.start(model_path=path, scratch_folders=[scratch])
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("slots", [0, 257])
async def test_a_number_of_slots_that_no_engine_has(
    tiny_gguf: Path, slots: int
) -> None:
    """There are 1 to 256 slots."""
    with pytest.raises(EngineStartError, match=f"{slots} slots were asked for"):
        await LlamaBackend.start(model_path=tiny_gguf, slots=slots)


@pytest.mark.parametrize("context_tokens", [0, 8193])
async def test_more_context_than_the_model_was_trained_for(
    tiny_gguf: Path, context_tokens: int
) -> None:
    """The engine would silently cap it; the model's limit is named instead."""
    with pytest.raises(EngineStartError, match=rf"{context_tokens} tokens.*1 to 8192"):
        await LlamaBackend.start(model_path=tiny_gguf, context_tokens=context_tokens)


async def test_more_slots_than_the_memory_holds() -> None:
    """The bytes needed and the bytes available are both named."""
    header = ModelHeader(
        architecture="llama",
        name="huge",
        context_tokens=1 << 30,
        layers=1000,
        kv_values_per_token=1 << 20,
    )
    with pytest.raises(
        EngineStartError, match=r"KV memory, only [0-9,]+ are available"
    ):
        check_size(header, 16, 1 << 30)


async def test_a_port_in_use(tiny_gguf: Path) -> None:
    """A port that somebody listens on is named."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(EngineStartError, match=f"port {port} .* is in use"):
            await LlamaBackend.start(model_path=tiny_gguf, port=port)


async def test_the_engine_is_not_installed(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence is the command that installs it."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EngineStartError, match=r"pip install 'kvalet\[local\]'"):
        await LlamaBackend.start(model_path=tiny_gguf)


async def test_a_start_that_takes_too_long(tiny_gguf: Path, tmp_path: Path) -> None:
    """The bound is kept, and neither child nor folder stays."""
    with pytest.raises(EngineStartError, match=r"did not start within 0\.01 s"):
        await LlamaBackend.start(
            model_path=tiny_gguf, start_timeout_s=0.01, scratch_folders=[tmp_path]
        )
    assert list(tmp_path.iterdir()) == []


async def test_the_user_is_told_about_disks(tiny_gguf: Path) -> None:
    """Without a folder in memory there is a note, and everything works."""
    async with aclosing(
        await LlamaBackend.start(model_path=tiny_gguf, scratch_folders=[])
    ) as backend:
        assert "not through memory" in backend.notes[0]
        turn = await run_turn(backend, 0, PROMPT, 3)
        await backend.export_kv(0, "k", turn.held)


async def test_every_call_on_a_lost_engine_says_so(backend: LlamaBackend) -> None:
    """Not one of them raises what the HTTP library raised."""
    request = Request(prompt=PROMPT, max_tokens=5, sampling=EXACT)
    turn = await run_turn(backend, 0, PROMPT, 5)
    state = await backend.export_kv(0, "k", turn.held)
    kill(backend)
    calls: list[Coroutine[Any, Any, object]] = [
        backend.prefill(0, request),
        anext(backend.decode(0, request, turn.prefilled)),
        backend.export_kv(0, "k", turn.held),
        backend.import_kv(0, state, turn.held),
        backend.release(0),
        backend.encode("text"),
    ]
    for call in calls:
        with pytest.raises(EngineLost, match="was ended by SIGKILL"):
            await call
    assert backend.process_ids() == ()


async def test_an_engine_lost_in_the_middle(backend: LlamaBackend) -> None:
    """A decode that runs when the engine dies ends with EngineLost."""
    request = Request(prompt=PROMPT, max_tokens=8000, sampling=EXACT)
    prefilled = await backend.prefill(0, request)
    alive = True
    with pytest.raises(EngineLost, match="was ended by SIGKILL"):
        async for _ in backend.decode(0, request, prefilled):
            if alive:
                kill(backend)
            alive = False  # chunks that were on their way may still come


async def test_a_restart_begins_empty(backend: LlamaBackend) -> None:
    """After a loss a fresh engine serves, with nothing in its slots."""
    before = await run_turn(backend, 0, PROMPT, 5)
    (old,) = backend.process_ids()
    kill(backend)
    await backend.restart()
    after = await run_turn(backend, 0, PROMPT, 5)
    assert backend.process_ids() != (old,)
    assert after.prefilled.reused_tokens == 0
    assert after.output == before.output


async def test_close_leaves_nothing(tiny_gguf: Path, tmp_path: Path) -> None:
    """Child and folder are gone, closing twice is no error, calls say it is over."""
    backend = await LlamaBackend.start(model_path=tiny_gguf, scratch_folders=[tmp_path])
    (process_id,) = backend.process_ids()
    await backend.aclose()
    await backend.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EngineLost, match="was stopped"):
        await backend.release(0)


PARENT = """
import asyncio, sys
from pathlib import Path
from kvalet.backends.llama import LlamaBackend

async def main():
    model, folder = map(Path, sys.argv[1:])
    backend = await LlamaBackend.start(model_path=model, scratch_folders=[folder])
    print(*backend.process_ids(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd_open")
async def test_the_child_dies_with_its_parent(tiny_gguf: Path, tmp_path: Path) -> None:
    """Even SIGKILL on the parent leaves neither child nor folder."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tiny_gguf), str(tmp_path)],
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        ended, _, _ = select.select([child], [], [], 10.0)
        assert ended
    finally:
        os.close(child)
    assert list(tmp_path.iterdir()) == []
