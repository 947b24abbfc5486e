"""Small traces, and lines of a trace file with one thing wrong."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvalet.runtime.traces import (
    SCHEMA,
    Header,
    Source,
    Step,
    Tool,
    Trace,
    TraceSession,
)

HEADER = {"type": "trace", "schema": SCHEMA, "source": {"format": "test"}}


def session_line(id: str = "a", **fields: Any) -> dict[str, Any]:
    """A session record as JSON."""
    return {"type": "session", "session": id, **fields}


def step_line(number: int = 0, session: str = "a", **fields: Any) -> dict[str, Any]:
    """A step record as JSON."""
    return {
        "type": "step",
        "session": session,
        "step": number,
        "t_ms": number * 1000,
        "input_tokens": 100 + number,
        "prefix_tokens": 0,
        "new_tokens": 100 + number,
        "output_tokens": 5,
        "next": "end",
        **fields,
    }


def tool_line(id: str = "t1", **fields: Any) -> dict[str, Any]:
    """A tool call as JSON."""
    return {"id": id, "name": "Bash", "start_ms": 0, "dur_ms": 10, **fields}


def write_lines(path: Path, *lines: Mapping[str, Any] | str) -> Path:
    """Write records, or lines as they are, to a file."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts))
    return path


def make_step(number: int = 0, session: str = "a", **fields: Any) -> Step:
    """A step whose input grew by ten tokens and its predecessor's output."""
    made: dict[str, Any] = {
        "next": "end",
        "input_tokens": 100 + 15 * number,
        "prefix_tokens": 0 if number == 0 else 90 + 15 * number,
        "new_tokens": 100 if number == 0 else 10,
        "output_tokens": 5,
    }
    made.update(fields)
    return Step(session=session, step=number, **made)


def make_session(
    id: str = "a", steps: int | tuple[Step, ...] = 2, **fields: Any
) -> TraceSession:
    """A session of these steps, or of this many."""
    if isinstance(steps, int):
        steps = tuple(make_step(number, id) for number in range(steps))
    return TraceSession(id=id, steps=steps, **fields)


def make_trace(*sessions: TraceSession) -> Trace:
    """A trace of these sessions, or of a small one."""
    header = Header(schema=SCHEMA, source=Source(format="test"))
    return Trace(header=header, sessions=sessions or (make_session(),))


def make_family() -> Trace:
    """A parent whose first step spawns a child."""
    call = Tool(id="t1", name="Task", class_name="subagent", dur_ms=500, child="b")
    first = make_step(0, "a", tools=(call,), next="subagent")
    parent = make_session("a", steps=(first, make_step(1, "a")))
    return make_trace(parent, make_session("b", parent="a", spawned_by="t1"))
