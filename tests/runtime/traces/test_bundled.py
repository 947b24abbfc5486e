"""The trace that ships with the project is what its note says."""

import shlex
from pathlib import Path
from statistics import median

import pytest
from typer.testing import CliRunner

from kvalet.runtime.cli.traces import app
from kvalet.runtime.traces import Trace, read_traces

PATH = Path(__file__).parents[3] / "examples" / "traces" / "coding-agents.jsonl"


@pytest.fixture(scope="module")
def trace() -> Trace:
    """The bundled trace."""
    return read_traces([PATH])


def test_its_note_makes_the_same_bytes(trace: Trace, tmp_path: Path) -> None:
    """Running the command line in the header gives the file again."""
    words = shlex.split(trace.header.source.note or "")
    assert words[:3] == ["kvalet", "traces", "generate"]
    output = tmp_path / "again.jsonl"
    result = CliRunner().invoke(app, [*words[2:], "--output", str(output)])
    assert result.exit_code == 0
    assert output.read_bytes() == PATH.read_bytes()


def test_it_fits_a_small_model_and_a_short_time(trace: Trace) -> None:
    """Six sessions that a tiny model on one core replays in well under a minute."""
    assert len(trace.sessions) == 6
    assert trace.step_count == 24
    assert 3500 <= trace.input_tokens <= 4500
    assert trace.new_tokens <= 1500
    assert trace.longest_context_tokens <= 320
    assert all(4 <= (step.output_tokens or 0) <= 14 for step in trace.steps)


def test_it_holds_one_of_each_kind(trace: Trace) -> None:
    """A time limit, an error, parallel calls, a subagent, a wait for the user."""
    statuses = [tool.status for tool in trace.tools]
    assert statuses.count("timeout") == 1
    assert "error" in statuses
    assert [len(step.tools) for step in trace.steps].count(2) == 1
    assert [step.next for step in trace.steps].count("user") == 1
    assert [step.next for step in trace.steps].count("subagent") == 1
    assert sum(session.parent is not None for session in trace.sessions) == 1


def test_its_waits_are_short_with_a_few_long_ones(trace: Trace) -> None:
    """Most tools take a fraction of a second, and no session waits ten."""
    waits_s = [(s.tool_ms or 0) / 1000 for s in trace.steps if s.next == "tool"]
    assert 0.1 <= median(waits_s) <= 0.3
    assert sum(wait_s >= 2 for wait_s in waits_s) >= 2
    for session in trace.sessions:
        assert sum(step.gap_ms or 0 for step in session.steps) < 10_000
    assert max(session.arrival_ms for session in trace.sessions) < 3000
