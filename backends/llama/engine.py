"""Starting, watching and stopping the child process that serves the model.

The engine is a process of its own because a failed assertion in it ends the process it
lives in. Everything that can be known to fail is checked before it starts, so that the
user reads a sentence and not a C++ log.
"""

import contextlib
import importlib.util
import json
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import anyio
import anyio.to_thread

from ..errors import EngineStartError
from .gguf import ModelHeader, NotGGUF, read_header
from .threads import in_thread

_MOST_SLOTS: Final = 256
_STOP_S: Final = 5.0
_TAIL_BYTES: Final = 8000
# "0.00.003.337 E llama_model_load: …" of a log line, up to what it says.
_LOG_PREFIX: Final = re.compile(r"^\d+\.\d+\.\d+\.\d+ [A-Z] (\w+ +)?\w*: +")
_TELLING: Final = re.compile(r"error|assert|fail|can't|couldn't", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the child is started with; ``context_tokens`` is per slot."""

    model_path: Path
    slots: int
    context_tokens: int
    threads: int
    batch_tokens: int
    port: int
    start_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A running child: where it answers, what it is, and how it ended."""

    url: str
    build: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    @classmethod
    async def start(cls, settings: EngineSettings, slot_dir: Path) -> "Engine":
        """Start the child and wait until it serves; raise EngineStartError."""
        _check_installed()
        # Not in a thread: cancelled there, it would leave a child nobody knows of.
        child = _spawn(settings, slot_dir)
        started: Engine | None = None
        try:
            started = await _wait_until_ready(child, settings)
            return started
        finally:
            if started is None:
                await _stop_shielded(child)

    @property
    def alive(self) -> bool:
        """Whether the child is still there."""
        return self.process.poll() is None

    async def obituary(self) -> str:
        """Return a sentence that says how the engine ended or that it is silent."""
        # The connection breaks a moment before the process can be waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            await in_thread(self.process.wait, 1.0)
        status = self.process.poll()
        number = self.process.pid
        if status is None:
            return f"the engine (process {number}) runs but does not answer"
        words = _last_words(self.log, newest=True)
        return f"the engine (process {number}) {_ending(status)}{words}"

    async def aclose(self) -> None:
        """Stop the child; closing twice is no error."""
        await _stop_shielded(_Child(process=self.process, log=self.log))


def check_model(path: Path) -> ModelHeader:
    """Read the model's header; raise EngineStartError where it can't be served."""
    try:
        return read_header(path)
    except FileNotFoundError:
        raise EngineStartError(f"the model file {path} does not exist") from None
    except (NotGGUF, OSError) as error:
        raise EngineStartError(f"the model can't be read: {error}") from None


def check_size(header: ModelHeader, slots: int, context_tokens: int) -> None:
    """Raise EngineStartError where so many slots of that context can't be had."""
    if not 1 <= slots <= _MOST_SLOTS:
        raise EngineStartError(
            f"{slots} slots were asked for, the engine has 1 to {_MOST_SLOTS}"
        )
    if not 1 <= context_tokens <= header.context_tokens:
        raise EngineStartError(
            f"{context_tokens} tokens of context were asked for, the model "
            f"{header.name!r} has 1 to {header.context_tokens}"
        )
    needed_bytes = slots * context_tokens * header.bytes_per_token()
    available_bytes = _available_memory_bytes()
    if available_bytes is not None and needed_bytes > available_bytes:
        raise EngineStartError(
            f"{slots} slots of {context_tokens} tokens take {needed_bytes:,} bytes of "
            f"KV memory, only {available_bytes:,} are available"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    process: subprocess.Popen[bytes]
    log: IO[bytes]


def _check_installed() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        raise EngineStartError(
            "the embedded engine is not installed: pip install 'kvalet[local]'"
        )


def _spawn(settings: EngineSettings, slot_dir: Path) -> _Child:
    arguments = {
        "model_path": str(settings.model_path),
        "slots": settings.slots,
        "context_tokens": settings.context_tokens,
        "threads": settings.threads,
        "batch_tokens": settings.batch_tokens,
        "port": settings.port,
        "slot_dir": str(slot_dir),
    }
    # A file, not a pipe: nobody has to drain it for the child to go on. It stays open
    # as long as the child lives, so no block can close it.
    log = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        process = subprocess.Popen(
            # -P: a module in the user's working folder must not shadow a library's.
            [sys.executable, "-P", "-m", f"{__package__}.serve", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    except BaseException:
        log.close()
        raise
    return _Child(process=process, log=log)


async def _wait_until_ready(child: _Child, settings: EngineSettings) -> Engine:
    assert child.process.stdout is not None
    line = b""
    with anyio.move_on_after(settings.start_timeout_s) as scope:
        # Left behind when cancelled, the thread ends with the child that it reads from.
        line = await anyio.to_thread.run_sync(
            _read_answer, child.process.stdout, abandon_on_cancel=True
        )
    if scope.cancelled_caught:
        raise EngineStartError(
            f"the engine did not start within {settings.start_timeout_s:g} s"
            f"{_last_words(child.log, newest=False)}"
        )
    try:
        answer: dict[str, str] = json.loads(line)
    except ValueError:
        raise EngineStartError(await _early_end(child, line)) from None
    if "error" in answer:
        # Its log is complete when it has ended, and not before.
        with contextlib.suppress(subprocess.TimeoutExpired):
            await in_thread(child.process.wait, _STOP_S)
        words = _last_words(child.log, newest=False) or f": {answer['error']}"
        raise EngineStartError(f"the engine can't start{words}")
    return Engine(
        url=answer["url"], build=answer["build"], process=child.process, log=child.log
    )


def _read_answer(output: IO[bytes]) -> bytes:
    # A library may have something to say on standard output first.
    return next((line for line in output if line.startswith(b"{")), b"")


async def _early_end(child: _Child, line: bytes) -> str:
    try:
        status = await in_thread(child.process.wait, _STOP_S)
    except subprocess.TimeoutExpired:
        return f"the engine said {line!r} instead of where it serves"
    words = _last_words(child.log, newest=False)
    return f"the engine {_ending(status)} while starting{words}"


async def _stop_shielded(child: _Child) -> None:
    with anyio.CancelScope(shield=True):
        await in_thread(_stop, child)


def _stop(child: _Child) -> None:
    process = child.process
    if process.stdin is not None:
        # The end of its input is the order to go, a word before it that all is well.
        with contextlib.suppress(BrokenPipeError, ValueError):
            process.stdin.write(b"stop")
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
    child.log.close()


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}"


def _last_words(log: IO[bytes], *, newest: bool) -> str:
    """Return the one line of the log that says most, as the end of a sentence."""
    try:
        size = log.seek(0, 2)
        log.seek(max(0, size - _TAIL_BYTES))
        text = log.read().decode("utf-8", "replace")
    except ValueError:  # closed, perhaps this moment, by the thread that stops it
        return ""
    lines = [_LOG_PREFIX.sub("", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    if newest:
        lines.reverse()
    telling = [line for line in lines if _TELLING.search(line)]
    return f": {(telling or lines)[0]}" if lines else ""


def _available_memory_bytes() -> int | None:
    """Return what the system says can still be had; None where it doesn't say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None
