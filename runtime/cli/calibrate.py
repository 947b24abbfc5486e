"""``kvalet calibrate``: what work costs on a backend, and when parking pays there."""

import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ...backends import Backend, SimulatedBackend
from ...backends.accelerators import ACCELERATOR_NAMES, ACCELERATORS
from ...backends.llama import FetchProgress, LlamaBackend, fetch_default_model
from ...scheduler.cost import CostModel
from ...state_store import MemoryStore
from ..calibrate import Calibration, calibrate
from ..costs import costs_path, load_costs, save_costs
from ..errors import WrongInput
from ..replay.engines import BACKEND_NAMES
from .cost_table import encode_calibration, print_calibration
from .loop import run_to_end

_SLOTS = 2
# Longer than any context of today's agents; it costs nothing in virtual time.
_SIMULATED_CONTEXT_TOKENS = 131_072
_LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    backend: str
    model: Path | None
    threads: int
    context_tokens: int | None
    accelerator: str
    output: Path | None


def calibrate_command(
    backend: Annotated[
        str, typer.Option(help=f"What to measure: {' or '.join(BACKEND_NAMES)}.")
    ] = "llama",
    model: Annotated[
        Path | None,
        typer.Option(help="A GGUF file instead of the default model (llama)."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of the engine (llama).")] = 1,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens per slot; by default 4096 (simulated: 131072)."),
    ] = None,
    accelerator: Annotated[
        str,
        typer.Option(help=f"Which one (simulated): {', '.join(ACCELERATOR_NAMES)}."),
    ] = ACCELERATOR_NAMES[0],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The cost file; by default one in the cache folder."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, no table.")
    ] = False,
) -> None:
    """Measure prefill, decode, save and restore, and say from when on parking pays.

    Takes less than a minute. The costs are kept in a file that belongs to this backend,
    model and number of threads.
    """
    options = _checked(
        _Options(
            backend=backend,
            model=model,
            threads=threads,
            context_tokens=context,
            accelerator=accelerator,
            output=output,
        )
    )
    with _Progress(Console(stderr=True)) as progress:
        found, identity, limit_tokens, path = run_to_end(
            _measure(options, progress), virtual=backend == "simulated"
        )
    save_costs(path, found.costs, backend=identity)
    if json:
        typer.echo(encode_calibration(found, identity, limit_tokens).decode())
    else:
        print_calibration(found, identity, limit_tokens, Console())
    print(f"The costs are in {path}.", file=sys.stderr)


def _checked(options: _Options) -> _Options:
    if options.backend not in BACKEND_NAMES:
        valid = ", ".join(BACKEND_NAMES)
        raise WrongInput(f"unknown backend {options.backend!r}; valid are {valid}")
    if options.accelerator not in ACCELERATOR_NAMES:
        valid = ", ".join(ACCELERATOR_NAMES)
        raise WrongInput(
            f"unknown accelerator {options.accelerator!r}; valid are {valid}"
        )
    if options.threads < 1:
        raise WrongInput(f"--threads must be at least 1, not {options.threads}")
    if options.context_tokens is not None and options.context_tokens < 1:
        raise WrongInput(f"--context must be at least 1, not {options.context_tokens}")
    if options.backend == "simulated" and options.model is not None:
        raise WrongInput("--model goes with --backend llama")
    if options.backend != "simulated" and options.accelerator != ACCELERATOR_NAMES[0]:
        raise WrongInput("--accelerator goes with --backend simulated")
    return options


async def _measure(
    options: _Options, progress: "_Progress"
) -> tuple[Calibration, str, int, Path]:
    async with _opened(options, progress) as backend:
        has = backend.capabilities
        path = options.output or costs_path(has.identity)
        known = _known(path, has.identity, chosen=options.output is not None)
        found = await calibrate(backend, MemoryStore(None), progress=progress.advance)
    found.costs.adopt_tiers(known)
    return found, has.identity, has.context_tokens, path


def _known(path: Path, identity: str, *, chosen: bool) -> CostModel:
    """Return the costs in the file that is to be replaced.

    A file that the user named must be one of this backend: it may be anything else.
    """
    if not path.exists():
        return CostModel()
    try:
        return load_costs(path, backend=identity)
    except WrongInput:
        if chosen:
            raise
        return CostModel()


@asynccontextmanager
async def _opened(
    options: _Options, progress: "_Progress"
) -> AsyncGenerator[Backend, None]:
    """Start the backend; stop it, and remove what it left, at the end."""
    if options.backend == "simulated":
        context_tokens = options.context_tokens or _SIMULATED_CONTEXT_TOKENS
        yield SimulatedBackend(
            accelerator=ACCELERATORS[options.accelerator],
            name=options.accelerator,
            slots=_SLOTS,
            kv_tokens=_SLOTS * context_tokens,
            context_tokens=context_tokens,
        )
        return
    backend = await LlamaBackend.start(
        model_path=options.model or await fetch_default_model(progress.fetched),
        slots=_SLOTS,
        context_tokens=options.context_tokens,
        threads=options.threads,
    )
    try:
        for note in backend.notes:
            progress.say(note)
        yield backend
    finally:
        await backend.aclose()


class _Progress:
    """A bar on a terminal, else a line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description:>40}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=1.0)
        self._said_s = -inf

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a sentence."""
        self._console.print(f"kvalet: {text}", highlight=False, soft_wrap=True)

    def fetched(self, progress: FetchProgress) -> None:
        """Show how much of the model has arrived."""
        share = progress.done_bytes / progress.total_bytes
        self.advance(share, "fetching the default model")

    def advance(self, share: float, what: str) -> None:
        """Show how far it is, and with what."""
        self._bar.update(self._task, completed=share, description=what)
        now_s = time.monotonic()
        if not self._console.is_terminal and now_s - self._said_s >= _LINE_EVERY_S:
            self._said_s = now_s
            self.say(f"{share:.0%}, {what}")
