"""``kvalet traces``: generate, validate, convert."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvalet.runtime.cli.traces import app
from kvalet.runtime.traces import TraceError, read_traces, write_trace

from .builders import make_family, make_trace, write_lines
from .importers.claude_log import ClaudeLog


def test_generate_writes_to_standard_output() -> None:
    """Without --output the trace can be piped."""
    result = CliRunner().invoke(app, ["generate", "--sessions", "1"])
    lines = result.stdout.splitlines()
    assert json.loads(lines[0])["schema"] == "kvalet.trace/1"
    assert all(json.loads(line)["type"] for line in lines)


def test_validate_counts_each_path(tmp_path: Path) -> None:
    """One line a path: sessions, subagents, steps, calls, flags."""
    path = tmp_path / "t.jsonl"
    write_trace(make_family(), path)
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert result.stdout == (
        f"{path}: test, 2 sessions (1 subagents), 4 steps, 1 tool calls, "
        "longest context 120 tokens, flags: none\n"
    )


def test_validate_says_it_in_json(tmp_path: Path) -> None:
    """--json gives one object, errors in it."""
    good, bad = tmp_path / "a.jsonl", write_lines(tmp_path / "b.jsonl", "x")
    write_trace(make_trace(), good)
    result = CliRunner().invoke(app, ["validate", "--json", str(good), str(bad)])
    one, two = json.loads(result.stdout)["files"]
    assert (one["path"], one["steps"]) == (str(good), 2)
    assert two["error"].startswith(f"{bad}:1: ")
    assert isinstance(result.exception, TraceError)


def test_validate_looks_at_every_path(tmp_path: Path) -> None:
    """The first error is raised after the other paths have been looked at."""
    paths = [write_lines(tmp_path / name, name) for name in ("a.jsonl", "b.jsonl")]
    good = tmp_path / "c.jsonl"
    write_trace(make_trace(), good)
    arguments = ["validate", *map(str, [*paths, good])]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, TraceError)
    assert str(result.exception).startswith(f"{paths[0]}:1: ")
    assert f"{paths[1]}:1: " in result.stderr
    assert f"{good}: test" in result.stdout


def test_convert_makes_one_trace_of_anything(tmp_path: Path) -> None:
    """A recording and a trace become one kvalet.trace/1 file."""
    log = ClaudeLog()
    log.user("hi")
    log.assistant(text="hello")
    write_trace(make_trace(), tmp_path / "a.jsonl")
    output = tmp_path / "out.jsonl"
    recording = log.write(tmp_path / "log.jsonl")
    arguments = [str(recording), str(tmp_path / "a.jsonl"), "--output", str(output)]
    CliRunner().invoke(app, ["convert", *arguments], catch_exceptions=False)
    assert len(read_traces([output]).sessions) == 2


def test_a_wrong_input_leaves_as_a_trace_error(tmp_path: Path) -> None:
    """The command line above turns it into a sentence and an exit status."""
    with pytest.raises(TraceError, match="there is no such file"):
        CliRunner().invoke(
            app, ["convert", str(tmp_path / "none")], catch_exceptions=False
        )
