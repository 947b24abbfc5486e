"""Scaling keeps what a replay relies on."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvalet.runtime.traces import Step, Trace, TraceError, scaled, scaled_to_fit
from kvalet.runtime.traces.checks import step_problems
from kvalet.runtime.traces.trace import context_tokens

from .builders import make_session, make_step, make_trace
from .strategies import traces

SCALES = st.sampled_from([0.0001, 0.01, 0.13, 0.5, 0.999, 1.7, 40.0])


def pairs(trace: Trace) -> list[tuple[Step, Step]]:
    """Neighbouring steps of all sessions."""
    return [
        pair for session in trace.sessions for pair in itertools.pairwise(session.steps)
    ]


@settings(max_examples=60, deadline=None)
@given(traces(), SCALES)
def test_scaled_steps_obey_the_rules(trace: Trace, token_scale: float) -> None:
    """No prefix exceeds its input, and new tokens are the difference."""
    result = scaled(trace, token_scale=token_scale)
    for session in result.sessions:
        before = None
        for step in session.steps:
            assert not list(step_problems(step, before))
            before = step


@settings(max_examples=60, deadline=None)
@given(traces(), SCALES)
def test_what_was_there_stays(trace: Trace, token_scale: float) -> None:
    """Unknown stays unknown, and at least one token stays where one was."""
    result = scaled(trace, token_scale=token_scale)
    names = (
        "input_tokens",
        "cached_tokens",
        "prefix_tokens",
        "new_tokens",
        "output_tokens",
        "reasoning_tokens",
    )
    for old, new in zip(trace.steps, result.steps, strict=True):
        for name in names[:5]:
            before, after = getattr(old, name), getattr(new, name)
            assert (before is None) == (after is None)
            if before and not (name == "cached_tokens" and new.input_tokens == 0):
                assert after >= 1, name


@settings(max_examples=60, deadline=None)
@given(traces(), SCALES)
def test_contexts_that_grew_still_grow(trace: Trace, token_scale: float) -> None:
    """Inputs keep their order, and a prefix stays within the context before it."""
    result = scaled(trace, token_scale=token_scale)
    for (old_a, old_b), (new_a, new_b) in zip(pairs(trace), pairs(result), strict=True):
        if old_b.prefix_tokens is None or old_a.prefix_tokens is None:
            continue
        assert new_b.prefix_tokens is not None
        assert new_b.prefix_tokens <= context_tokens(new_a)
        if old_b.prefix_tokens == context_tokens(old_a):
            assert new_b.prefix_tokens == context_tokens(new_a)
        if (old_b.input_tokens or 0) >= (old_a.input_tokens or 0):
            assert (new_b.input_tokens or 0) >= (new_a.input_tokens or 0)


@settings(max_examples=50, deadline=None)
@given(traces())
def test_scales_of_one_change_nothing(trace: Trace) -> None:
    """The trace comes back equal, header included."""
    assert scaled(trace) == trace


def test_times_are_scaled_and_noted() -> None:
    """Every time of a step follows, arrivals with it, and the header says so."""
    step = make_step(t_ms=0, tool_ms=1000, user_ms=500, gap_ms=1500, llm_ms=100)
    trace = make_trace(make_session("a", steps=(step,), arrival_ms=4000))
    result = scaled(trace, time_scale=0.5, token_scale=0.1)
    (made,) = result.steps
    assert (made.tool_ms, made.user_ms, made.gap_ms, made.llm_ms) == (500, 250, 750, 50)
    assert result.sessions[0].arrival_ms == 2000
    note = "scaled: tokens x0.1, times x0.5, arrivals x0.5"
    assert result.header.source.note == note


def test_arrivals_may_have_a_scale_of_their_own() -> None:
    """Load can change while waits stay as they were."""
    trace = make_trace(make_session("a", arrival_ms=4000))
    assert scaled(trace, arrival_scale=0.25).sessions[0].arrival_ms == 1000


def test_hash_ids_go_when_tokens_are_scaled() -> None:
    """They name blocks of real tokens, which are no longer there."""
    step = make_step(hash_ids=(1, 2), block_size=64)
    trace = make_trace(make_session("a", steps=(step,)))
    (made,) = scaled(trace, token_scale=0.5).steps
    assert (made.hash_ids, made.block_size) == (None, None)


@pytest.mark.parametrize("limit_tokens", [20, 100, 1000, 10_000])
def test_a_long_trace_fits_where_it_can(limit_tokens: int) -> None:
    """No context exceeds the limit; one that fits already keeps its tokens."""
    trace = make_trace(make_session("a", steps=5), make_session("b", steps=3))
    long = scaled(trace, token_scale=30)
    result = scaled_to_fit(long, context_tokens=limit_tokens)
    assert result.longest_context_tokens <= limit_tokens
    if limit_tokens >= long.longest_context_tokens:
        assert result == long


def test_a_trace_of_too_many_steps_does_not_fit() -> None:
    """Each step keeps a token of input and one of output, so the limit is said."""
    trace = make_trace(make_session("a", steps=50))
    with pytest.raises(TraceError, match=r"cannot be scaled down to 20"):
        scaled_to_fit(trace, context_tokens=20)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_senseless_scale_is_named(scale: float) -> None:
    """The message says which scale, and its value."""
    with pytest.raises(TraceError, match=f"token_scale: {scale} is no scale"):
        scaled(make_trace(), token_scale=scale)
