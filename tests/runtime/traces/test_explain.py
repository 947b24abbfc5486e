"""Complaints of the decoder become a field and a sentence."""

import json

import msgspec

from kvalet.runtime.traces.explain import explain

from .builders import step_line, tool_line


def test_a_list_without_an_index_gets_one() -> None:
    """Older msgspec writes [...] for any element; the bad tool is looked up."""
    line = json.dumps(step_line(tools=[tool_line(), tool_line("t2", dur_ms=-1)]))
    error = msgspec.ValidationError("Expected `int` >= 0 - at `$.tools[...].dur_ms`")
    assert explain(line.encode(), error) == (
        "tools[1].dur_ms",
        "-1 is not allowed: expected `int` >= 0",
    )


def test_other_lists_are_shown_whole() -> None:
    """Their elements are small, so the list itself is shown."""
    line = json.dumps(step_line(deps=["a/0", 7])).encode()
    error = msgspec.ValidationError("Expected `str`, got `int` - at `$.deps[...]`")
    assert explain(line, error) == (
        "deps",
        '["a/0",7] is not allowed: expected `str`, got `int`',
    )


def test_a_long_value_is_cut() -> None:
    """A message stays one readable line."""
    line = json.dumps(step_line(model=["x" * 500])).encode()
    error = msgspec.ValidationError("Expected `str | null` - at `$.model`")
    _, sentence = explain(line, error)
    assert len(sentence) < 120 and "..." in sentence
