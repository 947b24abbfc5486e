"""A backend made to the trace's measure, and what the user is told about it."""

from pathlib import Path

import pytest

from kvalet import WrongInput
from kvalet.runtime.replay.engines import Engine, EngineOptions, open_engine
from kvalet.runtime.traces import Trace

from .stage import session, step, trace_of

pytestmark = pytest.mark.asyncio


async def opened(trace: Trace, options: EngineOptions) -> Engine:
    """Open and close the engine; return what it was."""
    async with open_engine(trace, options) as engine:
        return engine


def tiny(
    path: Path, context_tokens: int | None = None, token_scale: float | None = None
) -> EngineOptions:
    """Return options for the tiny model."""
    return EngineOptions(
        backend="llama",
        model=path,
        context_tokens=context_tokens,
        token_scale=token_scale,
    )


async def test_a_trace_that_fits_is_not_touched(tiny_gguf: Path) -> None:
    """The context is what the trace needs, in steps of 256 tokens; nothing to say."""
    trace = trace_of(session("a", step(0, input=300, output=10)))
    engine = await opened(trace, tiny(tiny_gguf))
    assert engine.backend.capabilities.context_tokens == 512
    assert engine.trace.longest_context_tokens == 310
    assert engine.notes == ()


async def test_a_trace_that_does_not_fit_is_scaled_and_said(tiny_gguf: Path) -> None:
    """All token counts shrink by one factor until the longest context fits."""
    trace = trace_of(session("a", step(0, input=20_000, output=10)))
    engine = await opened(trace, tiny(tiny_gguf, context_tokens=1000))
    assert 700 <= engine.trace.longest_context_tokens <= 1000
    [note] = engine.notes
    assert "20010 tokens and a slot holds 1000" in note and "scaled" in note


async def test_a_scale_that_does_not_fit_is_refused(tiny_gguf: Path) -> None:
    """Whoever names a scale gets that scale or a sentence."""
    trace = trace_of(session("a", step(0, input=20_000, output=10)))
    with pytest.raises(WrongInput, match=r"--token-scale 0\.5 .* 10005 tokens"):
        await opened(trace, tiny(tiny_gguf, context_tokens=1000, token_scale=0.5))


async def test_long_waits_are_announced(tiny_gguf: Path) -> None:
    """Ten minutes of recorded tools are ten minutes in real time, and one is told."""
    waits = step(0, input=10, output=5, gap_ms=600_000)
    engine = await opened(trace_of(session("a", waits)), tiny(tiny_gguf))
    [note] = engine.notes
    assert "waits 10 minutes" in note


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (EngineOptions(backend="simulated", kv_tokens=50), "holds 50; give more"),
        (EngineOptions(backend="simulated", model=Path("m")), "--model goes with"),
        (EngineOptions(backend="llama", model=Path("m"), kv_tokens=9), "--kv-tokens"),
        (EngineOptions(backend="vllm"), "unknown backend 'vllm'; valid are llama"),
        (EngineOptions(backend="simulated", slots=0), "--slots must be at least 1"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    options: EngineOptions, sentence: str
) -> None:
    """Each wrong choice is named."""
    trace = trace_of(session("a", step(0, input=100, output=10)))
    with pytest.raises(WrongInput) as refused:
        await opened(trace, options)
    assert sentence in str(refused.value)
