"""A trace file is read strictly, and errors name file, line and field."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvalet.runtime.traces import TraceError, read_traces

from .builders import HEADER, session_line, step_line, tool_line, write_lines

Line = Mapping[str, Any] | str

CASES: dict[str, tuple[list[Line], str]] = {
    "not JSON": ([HEADER, "{oops"], ":2: the line is not JSON"),
    "not JSON after a wrong field": (
        [HEADER, '{"type": "step", "sessoin": "a", oops'],
        ":2: the line is not JSON",
    ),
    "not an object": ([HEADER, "[1]"], ":2: the line is no record"),
    "other version": (
        [{**HEADER, "schema": "kvalet.trace/2"}],
        ":1: schema: 'kvalet.trace/2' is not supported; this version reads "
        "'kvalet.trace/1'",
    ),
    "no header": ([step_line()], ":1: type: a trace must open with its header"),
    "second header": ([HEADER, step_line(), HEADER], ":3: type: a second header"),
    "unknown type": ([HEADER, {"type": "span"}], ':2: type: "span" is no record type'),
    "unknown field": (
        [HEADER, step_line(outptu_tokens=3)],
        ":2: outptu_tokens: kvalet.trace/1 has no such field",
    ),
    "unknown field of a tool": (
        [HEADER, step_line(tools=[tool_line(), tool_line("t2", speed=1)])],
        ":2: tools[1].speed: kvalet.trace/1 has no such field",
    ),
    "missing field": (
        [HEADER, {"type": "step", "session": "a", "next": "end"}],
        ":2: step: the field is missing",
    ),
    "skipped step": (
        [HEADER, step_line(0), step_line(2)],
        ":3: step: step 2 of session 'a' is out of order; expected step 1",
    ),
    "first step is not 0": ([HEADER, step_line(1)], ":2: step: step 1 of session 'a'"),
    "time runs backwards": (
        [HEADER, step_line(0, t_ms=5), step_line(1, t_ms=4)],
        ":3: t_ms: 4 is before 5",
    ),
    "negative time": ([HEADER, step_line(gap_ms=-7)], ":2: gap_ms: -7 is not allowed"),
    "negative tokens": (
        [HEADER, step_line(output_tokens=-1)],
        ":2: output_tokens: -1 is not allowed",
    ),
    "negative duration of a tool": (
        [HEADER, step_line(tools=[tool_line(), tool_line("t2", dur_ms=-3)])],
        ":2: tools[1].dur_ms: -3 is not allowed",
    ),
    "negative arrival": (
        [HEADER, session_line(arrival_ms=-2), step_line()],
        ":2: arrival_ms: -2 is not allowed",
    ),
    "text for a number": (
        [HEADER, step_line(llm_ms="fast")],
        ':2: llm_ms: "fast" is not allowed: expected `int | null`',
    ),
    "unknown status": (
        [HEADER, step_line(tools=[tool_line(status="fine")])],
        ':2: tools[0].status: "fine" is not allowed; expected one of ok, error',
    ),
    "unknown flag": (
        [HEADER, step_line(q=["odd"])],
        ':2: q[0]: "odd" is not allowed; expected one of',
    ),
    "prefix above input": (
        [HEADER, step_line(prefix_tokens=101)],
        ":2: prefix_tokens: 101 is more than the 100 input tokens",
    ),
    "new is not the difference": (
        [HEADER, step_line(new_tokens=99)],
        ":2: new_tokens: 99 is not 100 input tokens less 0 prefix tokens",
    ),
    "two records of a session": (
        [HEADER, session_line(), session_line(), step_line()],
        ":3: session: session 'a' has a record on line 2 already",
    ),
    "session without a step": (
        [HEADER, step_line(), session_line("b")],
        ":3: session: session 'b' has no step",
    ),
    "unknown parent": (
        [HEADER, session_line(parent="z"), step_line()],
        ":2: parent: 'z' is no session of this trace",
    ),
    "circle of parents": (
        [
            HEADER,
            session_line("a", parent="b"),
            session_line("b", parent="a"),
            step_line(),
            step_line(session="b"),
        ],
        ":2: parent: session 'a' is among its own ancestors",
    ),
    "spawned without a parent": (
        [HEADER, session_line(spawned_by="t1"), step_line()],
        ":2: parent: a session spawned by 't1' must name its parent",
    ),
    "spawned by no tool": (
        [
            HEADER,
            session_line("b", parent="a", spawned_by="t9"),
            step_line(tools=[tool_line()]),
            step_line(session="b"),
        ],
        ":2: spawned_by: 't9' is no tool call of the parent session 'a'",
    ),
    "child that is not one": (
        [HEADER, step_line(tools=[tool_line(child="b")]), step_line(session="b")],
        ":2: tools[0].child: 'b' is no session spawned by 't1'",
    ),
    "one id for two calls": (
        [HEADER, step_line(tools=[tool_line(), tool_line()])],
        ":2: tools[1].id: 't1' is the id of an earlier call too",
    ),
    "dependency on nothing": (
        [HEADER, step_line(deps=["a/7"])],
        ":2: deps: 'a/7' is no session/step of this trace",
    ),
    "dependencies in a circle": (
        [HEADER, step_line(deps=["b/0"]), step_line(session="b", deps=["a/0"])],
        ":2: deps: the steps a/0, b/0, a/0 wait for each other",
    ),
    "header alone": ([HEADER], ": the trace holds no session"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_broken_rule_is_named(name: str, tmp_path: Path) -> None:
    """The message begins with file and line, then the field, then one sentence."""
    lines, expected = CASES[name]
    path = write_lines(tmp_path / "bad.jsonl", *lines)
    with pytest.raises(
        TraceError, match="^" + re.escape(f"{path}{expected}")
    ) as caught:
        read_traces([path])
    assert "\n" not in str(caught.value)


def test_session_records_are_optional(tmp_path: Path) -> None:
    """Steps alone make a session without a parent, arriving at once."""
    path = write_lines(tmp_path / "t", HEADER, step_line(), step_line(1))
    (session,) = read_traces([path]).sessions
    assert (session.id, session.parent, session.arrival_ms) == ("a", None, 0)
    assert len(session.steps) == 2


def test_unknown_is_not_zero(tmp_path: Path) -> None:
    """A field that is null or absent reads as None, zero as zero."""
    line = step_line(tool_ms=0, gap_ms=None)
    path = write_lines(tmp_path / "t", HEADER, line)
    (step,) = read_traces([path]).steps
    assert (step.tool_ms, step.gap_ms, step.user_ms) == (0, None, None)


def test_a_tool_may_start_before_the_model_call_ends(tmp_path: Path) -> None:
    """start_ms is the one time that may be negative."""
    line = step_line(tools=[tool_line(start_ms=-20)])
    path = write_lines(tmp_path / "t", HEADER, line)
    (tool,) = read_traces([path]).tools
    assert tool.start_ms == -20


def test_blank_lines_count_as_lines(tmp_path: Path) -> None:
    """A blank line is passed over and keeps line numbers right."""
    path = write_lines(tmp_path / "t", HEADER, "", step_line(1))
    with pytest.raises(TraceError, match=":3: step:"):
        read_traces([path])


def test_steps_of_sessions_may_interleave(tmp_path: Path) -> None:
    """A live recorder writes steps as they end, whichever session they are of."""
    lines = [step_line(0), step_line(0, "b"), step_line(1), step_line(1, "b")]
    trace = read_traces([write_lines(tmp_path / "t", HEADER, *lines)])
    assert [len(session.steps) for session in trace.sessions] == [2, 2]
