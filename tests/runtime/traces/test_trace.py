"""What a trace says about itself."""

import pytest

from .builders import make_family, make_session, make_step, make_trace


def test_counts_add_up_over_sessions() -> None:
    """Steps, calls and tokens are those of all sessions."""
    trace = make_family()
    assert (trace.step_count, trace.tool_count) == (4, 1)
    assert trace.input_tokens == 2 * (100 + 115)
    assert trace.new_tokens == 2 * (100 + 10)
    assert trace.output_tokens == 20
    assert trace.longest_context_tokens == 120


def test_unknown_sizes_count_as_none() -> None:
    """A step whose sizes are unknown adds nothing to the sums."""
    step = make_step(
        input_tokens=None, prefix_tokens=None, new_tokens=None, output_tokens=None
    )
    trace = make_trace(make_session("a", steps=(step,)))
    assert (trace.input_tokens, trace.longest_context_tokens) == (0, 0)


def test_flags_are_counted_by_step() -> None:
    """The number beside a flag is the number of steps that carry it."""
    steps = (make_step(0, q=("truncated", "compacted")), make_step(1, q=("compacted",)))
    trace = make_trace(make_session("a", steps=steps))
    assert trace.flags() == {"compacted": 2, "truncated": 1}


def test_sessions_are_found_by_id_and_by_parent() -> None:
    """An unknown id is a KeyError."""
    trace = make_family()
    assert trace.children("a") == (trace.session("b"),)
    with pytest.raises(KeyError):
        trace.session("z")
