"""The backends that a replay can run on, made to the trace's measure.

A real model holds fewer tokens than the conversations of a large one. Where a trace
does not fit, its token counts are scaled down by one factor, which is said and noted in
the report; nothing is cut off.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ...backends import (
    ACCELERATOR_NAMES,
    Backend,
    BackendError,
    SimulatedBackend,
    accelerator,
)
from ...backends.llama import FetchProgress, LlamaBackend, fetch_default_model
from ...backends.llama.engine import check_model
from ..errors import WrongInput
from ..traces import Trace
from ..traces.scale import scaled, scaled_to_fit
from .complete import completed

BACKEND_NAMES = ("llama", "simulated")

# A step of the context size: sizes repeat, so runs compare.
_CONTEXT_STEP_TOKENS = 256

# From here on a run deserves a warning.
_LONG_S = 300.0

# What prompts are drawn from: ordinary text, so that ids are ordinary ones.
_TEXT = (
    "The agent reads a file, runs the tests, looks for the function that fails and "
    "edits two lines; then it waits for the build. 0 1 2 3 4 5 6 7 8 9 def return if "
    "else for while class import from with as try except raise yield lambda assert "
    "error warning line column path value key index list table queue slot token cache "
    "server client request answer prompt model memory time second minute hour day"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What the user chose; None leaves it to the trace and the model."""

    backend: str
    slots: int | None = None
    model: Path | None = None
    threads: int = 1
    context_tokens: int | None = None
    kv_tokens: int | None = None
    token_scale: float | None = None
    time_scale: float | None = None
    accelerator: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A backend that is ready, the trace that fits it, what to draw prompts from.

    ``endless`` is the same accelerator with memory without end, where that can be had.
    """

    backend: Backend
    endless: Backend | None = None
    trace: Trace
    vocabulary: Sequence[int]
    notes: tuple[str, ...] = ()


@asynccontextmanager
async def open_engine(
    trace: Trace,
    options: EngineOptions,
    on_fetch: Callable[[FetchProgress], None] | None = None,
) -> AsyncGenerator[Engine, None]:
    """Start the backend for *trace*; stop it, and remove what it left, at the end.

    Raises WrongInput or what the backend raises when it can't be started.
    """
    slots = 2 if options.slots is None else options.slots
    if slots < 1:
        raise WrongInput(f"--slots must be at least 1, not {slots}")
    if options.backend == "simulated":
        yield _simulate(trace, options, slots)
        return
    if options.backend != "llama":
        valid = ", ".join(BACKEND_NAMES)
        raise WrongInput(f"unknown backend {options.backend!r}; valid are {valid}")
    model = options.model or await fetch_default_model(on_fetch)
    fitted, context_tokens, note = _fit(trace, options, model)
    backend = await LlamaBackend.start(
        model_path=model,
        slots=slots,
        context_tokens=context_tokens,
        threads=options.threads,
    )
    try:
        vocabulary = sorted(set(await backend.encode(_TEXT)))
        notes = (*note, *backend.notes)
        yield Engine(backend=backend, trace=fitted, vocabulary=vocabulary, notes=notes)
    finally:
        await backend.aclose()


def _simulate(trace: Trace, options: EngineOptions, slots: int) -> Engine:
    if options.model is not None:
        raise WrongInput("--model goes with --backend llama")
    name = options.accelerator or ACCELERATOR_NAMES[0]
    try:
        constants = accelerator(name)
    except BackendError as error:
        raise WrongInput(str(error)) from None
    fitted = _scaled(trace, options)
    needed = fitted.longest_context_tokens
    context_tokens = options.context_tokens or needed
    kv_tokens = options.kv_tokens or slots * context_tokens
    if kv_tokens < needed or context_tokens < needed:
        raise WrongInput(
            f"the longest context of the trace has {needed} tokens, the accelerator "
            f"holds {min(kv_tokens, context_tokens)}; give more or a --token-scale"
        )
    backend = SimulatedBackend(
        accelerator=constants,
        name=name,
        slots=slots,
        kv_tokens=kv_tokens,
        context_tokens=context_tokens,
    )
    everybody = len(fitted.sessions)
    endless = SimulatedBackend(
        accelerator=constants,
        name=name,
        slots=everybody,
        kv_tokens=everybody * context_tokens,
        context_tokens=context_tokens,
    )
    return Engine(backend=backend, endless=endless, trace=fitted, vocabulary=(1,))


def _fit(
    trace: Trace, options: EngineOptions, model: Path
) -> tuple[Trace, int, tuple[str, ...]]:
    """Return the trace as it fits the model, the context per slot, and what to say."""
    for name in ("kv_tokens", "accelerator"):
        if getattr(options, name) is not None:
            option = name.replace("_", "-")
            raise WrongInput(f"--{option} goes with --backend simulated")
    limit = options.context_tokens or check_model(model).context_tokens
    wanted = _scaled(trace, options)
    needed = wanted.longest_context_tokens
    if needed > limit and options.token_scale is not None:
        raise WrongInput(
            f"at --token-scale {options.token_scale:g} the longest context has "
            f"{needed} tokens, a slot holds {limit}"
        )
    fitted = scaled_to_fit(wanted, context_tokens=limit)
    notes: tuple[str, ...] = ()
    if needed > limit:
        scale = fitted.longest_context_tokens / needed
        notes = (
            f"the longest context has {needed} tokens and a slot holds {limit}: all "
            f"token counts are scaled by about {scale:.4f}",
        )
    notes += _patience(fitted)
    if options.context_tokens is not None:
        return fitted, options.context_tokens, notes
    steps = -(-fitted.longest_context_tokens // _CONTEXT_STEP_TOKENS)
    return fitted, min(limit, steps * _CONTEXT_STEP_TOKENS), notes


def _patience(trace: Trace) -> tuple[str, ...]:
    """Say so where the recorded waits make a run in real time a long one."""
    wait_s = max(
        sum(step.gap_ms or step.tool_ms or 0 for step in session.steps) / 1000
        for session in trace.sessions
    )
    if wait_s < _LONG_S:
        return ()
    return (
        f"one session waits {wait_s / 60:,.0f} minutes for its tools and users, and so "
        "will each policy's run; --time-scale, --sessions or --backend simulated make "
        "it shorter",
    )


def _scaled(trace: Trace, options: EngineOptions) -> Trace:
    trace = completed(trace)
    if options.token_scale is None and options.time_scale is None:
        return trace
    return scaled(
        trace,
        token_scale=1.0 if options.token_scale is None else options.token_scale,
        time_scale=1.0 if options.time_scale is None else options.time_scale,
    )
