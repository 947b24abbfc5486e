"""Generated traces have the measured shape, and the same settings give the same."""

import itertools
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from kvalet.runtime.traces import (
    GeneratorSettings,
    Trace,
    TraceError,
    encode_trace,
    generate,
    read_traces,
    write_trace,
)
from kvalet.runtime.traces.distributions import TOOLS, USER_WAITS, QuantileTable
from kvalet.runtime.traces.trace import context_tokens

SETTINGS = GeneratorSettings(seed=11, sessions=250)


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Some 6,000 steps of the default shape."""
    return generate(SETTINGS)


def test_the_same_settings_give_the_same_bytes() -> None:
    """A generated trace is its settings; another seed is another trace."""
    settings = GeneratorSettings(seed=3, sessions=4)
    one, two = (b"".join(encode_trace(generate(settings))) for _ in range(2))
    assert one == two
    assert one != b"".join(encode_trace(generate(replace(settings, seed=4))))


def test_more_sessions_leave_the_first_ones_alone() -> None:
    """A longer trace begins with the shorter one."""
    short = generate(GeneratorSettings(seed=3, sessions=3)).sessions
    long = generate(GeneratorSettings(seed=3, sessions=6)).sessions
    assert long[: len(short)] == short


def test_a_generated_trace_obeys_the_rules(trace: Trace, tmp_path: Path) -> None:
    """The strict reader takes it back."""
    path = tmp_path / "t.jsonl"
    write_trace(trace, path)
    assert read_traces([path]) == trace


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75, 0.9])
def test_latencies_follow_their_tables(trace: Trace, share: float) -> None:
    """Quantiles per tool and class are those of the table, within sampling noise."""
    latencies_s: dict[tuple[str | None, str | None], list[float]] = defaultdict(list)
    for tool in trace.tools:
        if tool.status != "timeout" and tool.dur_ms is not None:
            latencies_s[tool.name, tool.class_name].append(tool.dur_ms / 1000)
    for shape in TOOLS:
        seen_s = sorted(latencies_s[shape.name, shape.class_name])
        if len(seen_s) < 100:
            continue
        # Four standard errors of the share that lies below a quantile.
        slack = 4 * math.sqrt(share * (1 - share) / len(seen_s))
        low = shape.latency_s.at(max(0.0, share - slack)) - 0.001
        high = shape.latency_s.at(min(1.0, share + slack)) + 0.001
        assert low <= seen_s[int(share * len(seen_s))] <= high, shape


def test_time_limits_are_an_atom(trace: Trace) -> None:
    """0.63 % of shell calls last exactly the limit, and have that status."""
    calls = [tool for tool in trace.tools if tool.name == "Bash"]
    hung = [tool for tool in calls if tool.status == "timeout"]
    assert {tool.dur_ms for tool in hung} == {120_000}
    assert all((tool.dur_ms or 0) < 120_000 for tool in calls if tool not in hung)
    assert 0.004 < len(hung) / len(calls) < 0.009


def test_a_lower_limit_cuts_longer_calls() -> None:
    """With a limit of two seconds no shell call is longer, and more time out."""
    cut = generate(GeneratorSettings(sessions=40, timeout_s=2.0))
    calls = [tool for tool in cut.tools if tool.name == "Bash"]
    assert max(tool.dur_ms or 0 for tool in calls) == 2000
    share = sum(tool.status == "timeout" for tool in calls) / len(calls)
    assert 0.1 < share < 0.3


def test_shares_of_errors_and_parallel_calls(trace: Trace) -> None:
    """Both shares are the measured ones, within a tenth of a tenth."""
    tools = [tool for tool in trace.tools if tool.name != "Task"]
    errors = sum(tool.status == "error" for tool in tools) / len(tools)
    assert abs(errors - 0.12) < 0.015
    steps = [step for step in trace.steps if step.next == "tool"]
    parallel = sum(len(step.tools) > 1 for step in steps) / len(steps)
    assert abs(parallel - 0.105) < 0.015


def test_contexts_grow_by_what_was_said(trace: Trace) -> None:
    """The prefix is the whole context before: input and output."""
    for session in trace.sessions:
        assert session.steps[0].prefix_tokens == 0
        for before, after in itertools.pairwise(session.steps):
            assert after.prefix_tokens == context_tokens(before)


def test_token_counts_have_the_measured_medians(trace: Trace) -> None:
    """Medians of appended and output tokens, and long tails."""
    appended = [step.new_tokens or 0 for step in trace.steps if step.step > 0]
    outputs = [step.output_tokens or 0 for step in trace.steps]
    assert 430 < median(appended) < 530
    assert 165 < median(outputs) < 195
    assert max(appended) > 20 * median(appended)


def test_a_subagent_ends_the_call_that_spawned_it(trace: Trace) -> None:
    """The call lasts from the child's arrival until its last step has ended."""
    children = [session for session in trace.sessions if session.parent is not None]
    assert len(children) > 20
    for child in children:
        parent = trace.session(child.parent or "")
        step = next(
            s for s in parent.steps if child.spawned_by in [t.id for t in s.tools]
        )
        (call,) = step.tools
        last = child.steps[-1]
        assert child.blocking and step.next == "subagent" and call.child == child.id
        assert call.dur_ms == (last.t_ms or 0) + (last.llm_ms or 0)
        assert child.arrival_ms == (
            parent.arrival_ms + (step.t_ms or 0) + (step.llm_ms or 0)
        )


def test_waits_for_the_user_are_apart(trace: Trace) -> None:
    """A step that waits for the user calls no tool, and others have no user wait."""
    for step in trace.steps:
        assert (step.next == "user") == (step.user_ms is not None)
        if step.next == "user":
            assert not step.tools and step.tool_ms == 0
    waits_s = [(step.user_ms or 0) / 1000 for step in trace.steps if step.user_ms]
    assert 80 < median(waits_s) < 200


def test_arrivals_have_the_rate_asked_for(trace: Trace) -> None:
    """0.05 sessions a second: one every twenty seconds."""
    last_s = max(s.arrival_ms for s in trace.sessions if s.parent is None) / 1000
    assert 0.04 < (SETTINGS.sessions - 1) / last_s < 0.0625


def test_steps_follow_each_other_in_time(trace: Trace) -> None:
    """A step starts when the gap of the one before it ends."""
    for session in trace.sessions:
        for before, after in itertools.pairwise(session.steps):
            end_ms = (before.t_ms or 0) + (before.llm_ms or 0) + (before.gap_ms or 0)
            assert after.t_ms == end_ms


def test_the_header_holds_the_command_line() -> None:
    """Options at their defaults are left out; the scales are in it once."""
    settings = GeneratorSettings(seed=2, sessions=1, mean_steps=4, time_scale=0.5)
    note = (
        "kvalet traces generate --seed 2 --sessions 1 --mean-steps 4 --time-scale 0.5"
    )
    assert generate(settings).header.source.note == note


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sessions", 0),
        ("arrivals_per_s", 0.0),
        ("error_share", 1.5),
        ("mean_steps", float("nan")),
        ("token_scale", -1.0),
        ("user_wait_s", -1.0),
    ],
)
def test_a_senseless_setting_is_named(name: str, value: float) -> None:
    """The message begins with the setting and its value."""
    # One value for a field of any type: what mypy objects to is the test's point.
    settings = GeneratorSettings(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=f"^{name}: {value} is out of range"):
        generate(settings)


def test_probabilities_share_one_step() -> None:
    """A step cannot both wait for the user and spawn a subagent."""
    settings = GeneratorSettings(user_turn_probability=0.7, subagent_probability=0.6)
    with pytest.raises(TraceError, match="are more than 1 together"):
        generate(settings)


def test_a_table_is_exact_at_its_points() -> None:
    """Interpolation meets the points, never leaves their range, and never falls."""
    table = QuantileTable(((0.0, 0.5), (0.5, 2.0), (1.0, 8.0)))
    assert [table.at(share) for share in (0.0, 0.5, 1.0)] == pytest.approx([0.5, 2, 8])
    for shape in TOOLS:
        values = [shape.latency_s.at(share / 500) for share in range(501)]
        assert values == sorted(values)
    assert USER_WAITS.at(0.5) == pytest.approx(1.0)
