"""The closed loop: what an agent of a trace does next, and when.

A prefill of 100 tokens takes 1 s, and there is one at a time; answers of one token take
nothing more. So the times below can be read off the trace. (Of a known history, the
last token is always computed: it was sampled, and has not been read yet.)
"""

import pytest

from kvalet.runtime.replay import ReplaySettings
from kvalet.runtime.traces.schema import Status
from kvalet.scheduler import SessionOpened, ToolEnded, ToolStarted

from .stage import Outcome, replay, session, step, tool


def _tools(outcome: Outcome) -> list[tuple[float, float, str]]:
    """Return start, end and status of every call, in the order of their ends."""
    starts = {e.call: e.at_s for e in outcome.events if isinstance(e, ToolStarted)}
    return [
        (round(starts[e.call], 6), round(e.at_s, 6), e.status)
        for e in outcome.events
        if isinstance(e, ToolEnded)
    ]


def test_a_step_follows_the_tools_of_the_one_before() -> None:
    """1 s of prefill, 2 s of tool, then the next step, whatever t_ms may say."""
    outcome = replay(
        session("a", step(0, tools=(tool("t", 2000),)), step(1, input=200, prefix=101))
    )
    assert outcome.submitted("a") == [0, 3]
    assert outcome.turns == outcome.report.turns == 2


def test_parallel_tools_start_when_recorded_and_end_together() -> None:
    """The step waits for the last of its calls; a call may start later."""
    tools = (tool("t1", 1000), tool("t2", 500, start_ms=2000), tool("t3", 100))
    outcome = replay(session("a", step(0, tools=tools), step(1, input=110, prefix=101)))
    assert outcome.submitted("a") == [0, 3.5]
    assert _tools(outcome) == [(1, 1.1, "ok"), (1, 2, "ok"), (3, 3.5, "ok")]


def test_a_call_that_began_during_the_answer_starts_at_its_end() -> None:
    """A negative start counts as zero: the tool cannot run before its call is known."""
    tools = (tool("t", 1000, start_ms=-500),)
    outcome = replay(session("a", step(0, tools=tools), step(1, input=110, prefix=101)))
    assert _tools(outcome) == [(1, 2, "ok")]


@pytest.mark.parametrize("status", ["ok", "error", "timeout", "cancelled"])
def test_a_call_ends_as_recorded(status: Status) -> None:
    """The recorded status is what the events and the report say."""
    outcome = replay(session("a", step(0, tools=(tool("t", 10, status=status),))))
    assert _tools(outcome) == [(1, 1.01, status)]
    bash = outcome.report.tools["Bash"]
    counts = {"error": bash.errors, "timeout": bash.timeouts}
    counts["cancelled"] = bash.cancelled
    assert {name for name, count in counts.items() if count} == {status} - {"ok"}


def test_a_user_wait_passes_before_the_next_step() -> None:
    """user_ms comes after the tools, and is no tool wait."""
    first = step(0, tools=(tool("t", 1000),), next="user", user_ms=4000)
    outcome = replay(session("a", first, step(1, input=110, prefix=101)))
    assert outcome.submitted("a") == [0, 6]
    assert len(_tools(outcome)) == 1


def test_what_is_left_of_a_gap_passes_too() -> None:
    """gap_ms less the tools' union is waited for, where nothing finer is known."""
    first = step(0, tools=(tool("t", 1000),), gap_ms=2500)
    outcome = replay(session("a", first, step(1, input=110, prefix=101)))
    assert outcome.submitted("a") == [0, 3.5]


def test_a_tool_that_nobody_named_is_a_tool() -> None:
    """A gap after a step that ended in a tool is a call of an unknown one."""
    outcome = replay(
        session("a", step(0, next="tool", gap_ms=2000), step(1, input=110, prefix=101))
    )
    assert outcome.submitted("a") == [0, 3]
    assert list(outcome.report.tools) == ["unknown"]


def test_a_blocking_child_ends_its_parents_call() -> None:
    """The call takes what the child takes here (two turns and a tool), not dur_ms."""
    call = tool("t", 50, name="Task", child="b")
    child = session(
        "b",
        step(0, "b", tools=(tool("u", 3000),)),
        step(1, "b", input=200, prefix=101),
        parent="a",
        spawned_by="t",
    )
    outcome = replay(
        session("a", step(0, tools=(call,)), step(1, input=110, prefix=101)), child
    )
    assert outcome.submitted("b") == [1, 5]
    assert outcome.submitted("a") == [0, 6]
    opened = {
        e.session: e.parent for e in outcome.events if isinstance(e, SessionOpened)
    }
    assert opened == {"a": None, "b": "a"}


def test_a_child_that_does_not_block_runs_beside_its_parent() -> None:
    """The call takes its recorded time; the child goes on, even past its parent."""
    call = tool("t", 50, name="Task", child="b")
    child = session(
        "b",
        step(0, "b", tools=(tool("u", 9000),)),
        step(1, "b", input=110, prefix=101),
        parent="a",
        spawned_by="t",
        blocking=False,
    )
    outcome = replay(
        session("a", step(0, tools=(call,)), step(1, input=110, prefix=101)), child
    )
    assert outcome.submitted("a") == [0, 1.05]
    assert outcome.submitted("b") == [1, 11]
    assert outcome.report.job_s.count == 2


def test_a_step_waits_for_the_steps_that_it_needs() -> None:
    """deps name steps of other sessions; the step starts when their answers are in."""
    outcome = replay(
        session("a", step(0), step(1, input=110, prefix=101, deps=("b/1",))),
        session(
            "b",
            step(0, "b", tools=(tool("t", 5000),)),
            step(1, "b", input=200, prefix=101),
        ),
    )
    assert outcome.submitted("b") == [0, 7]  # its first prefill is behind that of a
    assert outcome.submitted("a") == [0, 8]


def test_a_dependency_that_is_met_already_costs_nothing() -> None:
    """A step whose dependency ended long ago starts at once."""
    outcome = replay(
        session("a", step(0)),
        session("b", step(0, "b", deps=("a/0",)), arrival_ms=900),
        session("c", step(0, "c", deps=("a/0",)), arrival_ms=1500),
    )
    assert outcome.submitted("b") == [1]
    assert outcome.submitted("c") == [1.5]


def test_a_dependency_outside_of_the_replay_is_met() -> None:
    """Where only some sessions are replayed, nobody waits for the others."""
    outcome = replay(session("a", step(0, deps=("b/0",))))
    assert outcome.submitted("a") == [0]


def test_arrivals_are_kept_while_somebody_lives() -> None:
    """A session that arrives at 600 ms starts then."""
    outcome = replay(session("a", step(0)), session("b", step(0, "b"), arrival_ms=600))
    assert outcome.submitted("b") == [0.6]
    assert outcome.report.skipped_s == 0


def test_time_without_a_live_session_is_skipped() -> None:
    """An hour until the next arrival passes at once, and the report says how much."""
    hour_ms = 3_600_000
    outcome = replay(
        session("a", step(0)),
        session("b", step(0, "b"), arrival_ms=hour_ms),
        session("c", step(0, "c"), arrival_ms=hour_ms + 400),
    )
    assert outcome.submitted("b") == [1]
    assert outcome.submitted("c") == [1.4]
    assert outcome.report.skipped_s == 3599
    assert outcome.report.makespan_s == 3


@pytest.mark.parametrize(("concurrency", "starts"), [(1, [0, 1, 2]), (2, [0, 0, 1])])
def test_concurrency_replaces_arrivals(concurrency: int, starts: list[float]) -> None:
    """So many sessions run at any time, in the order of arrival."""
    outcome = replay(
        session("c", step(0, "c"), arrival_ms=90_000_000),
        session("a", step(0, "a"), arrival_ms=0),
        session("b", step(0, "b"), arrival_ms=50),
        settings=ReplaySettings(concurrency=concurrency),
    )
    assert [outcome.submitted(name)[0] for name in "abc"] == starts
    assert outcome.report.skipped_s == 0


def test_the_history_is_what_the_prefix_says() -> None:
    """The prompt is as long as recorded; of the context, prefix_tokens are kept."""
    outcome = replay(
        session(
            "a",
            step(0, input=100, output=50),
            step(1, input=200, prefix=150, output=10),
            step(2, input=60, prefix=20, output=1),
        ),
        settings=ReplaySettings(vocabulary=range(1000)),
    )
    assert outcome.prompts("a") == [(100, 0), (200, 150), (60, 20)]


def test_a_prefix_beyond_the_context_is_what_there_is() -> None:
    """A recording that claims more history than was ever said gets all there is."""
    outcome = replay(
        session("a", step(0, input=100), step(1, input=300, prefix=250)),
        settings=ReplaySettings(vocabulary=range(1000)),
    )
    assert outcome.prompts("a") == [(100, 0), (300, 101)]


def test_an_unknown_prefix_is_the_whole_context() -> None:
    """Null is unknown: a conversation that grows is taken to go on."""
    outcome = replay(session("a", step(0), step(1, input=300, prefix=None)))
    assert outcome.prompts("a") == [(100, 0), (300, 101)]


def test_prompts_depend_on_seed_and_session_alone() -> None:
    """The same seed gives the same events; the policy does not change a prompt."""
    steps = [step(0, tools=(tool("t", 5000),)), step(1, input=150, prefix=50)]
    first, second = (
        replay(session("a", *steps), settings=ReplaySettings(seed=7)) for _ in range(2)
    )
    assert first.events == second.events
    assert replay(session("a", *steps), policy="drop").prompts("a") == first.prompts(
        "a"
    )


@pytest.mark.parametrize("policy", ["keep", "drop", "park", "hold:1"])
def test_sessions_beyond_the_slots_all_end(policy: str) -> None:
    """Nine agents on two slots: every step is run under every policy."""
    sessions = [
        session(
            name,
            step(0, name, tools=(tool("t", 1500),)),
            step(1, name, input=200, prefix=101, tools=(tool("u", 300),)),
            step(2, name, input=250, prefix=201),
            arrival_ms=number * 100,
        )
        for number, name in enumerate("abcdefghi")
    ]
    outcome = replay(*sessions, policy=policy, slots=2)
    assert outcome.report.turns == 27
    assert outcome.report.lost_turns == 0
    assert outcome.report.job_s.count == 9
