"""cc-traces become traces: prefixes from block ids, waits from what comes next."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.runtime.traces import (
    Step,
    Trace,
    TraceError,
    TraceSession,
    read_traces,
    write_trace,
)
from kvalet.runtime.traces.importers.weka import WekaImporter
from kvalet.runtime.traces.importers.weka_records import Request
from kvalet.runtime.traces.importers.weka_steps import SharedPrefix
from tests.replay.stage import replay

Record = dict[str, Any]


def call(
    at_s: float, blocks: Sequence[int] = (), *, input: Any = None, **fields: Any
) -> Record:
    """A call that takes 2 s, answers with 10 tokens, and goes on to tools."""
    made: Record = {
        "t": at_s,
        "type": "n",
        "model": "m",
        "in": 64 * len(blocks) + 5 if input is None else input,
        "out": 10,
        "hash_ids": list(blocks),
        "input_types": ["tool_result"],
        "output_types": ["tool_use"],
        "stop": "tool_use",
        "api_time": 2.0,
        "think_time": 3.0,
    }
    return {**made, **fields}


def unanswered(at_s: float, **fields: Any) -> Record:
    """A call whose answer was not recorded."""
    made = call(at_s, stop="", output_types=[], **fields)
    return {name: value for name, value in made.items() if name != "api_time"}


def subagent(end_s: float, duration_ms: int, *calls: Record, **fields: Any) -> Record:
    """A subagent, which stands where it ended."""
    made: Record = {"t": end_s, "type": "subagent", "agent_id": "agent_001"}
    rest = {"duration_ms": duration_ms, "status": "completed", "requests": list(calls)}
    return {**made, **rest, **fields}


def recording(*requests: Record, id: str | None = "trace_1") -> Record:
    """A recording of these requests."""
    made = {"models": ["m"], "block_size": 64, "hash_id_scope": "local"}
    return {"id": id, **made, "requests": list(requests), "totals": {}}


def write(path: Path, *recordings: Record, indent: int | None = None) -> Path:
    """Write recordings, one below the other."""
    path.write_text("\n".join(json.dumps(one, indent=indent) for one in recordings))
    return path


def read(folder: Path, *requests: Record) -> Trace:
    """Write one recording and read it, with its id kept."""
    path = write(folder / "r.json", recording(*requests))
    return read_traces([path], importers=[WekaImporter(hash_ids=False)])


def read_steps(folder: Path, *requests: Record) -> tuple[Step, ...]:
    """Return the steps of a recording's own agent."""
    return read(folder, *requests).sessions[0].steps


def family(folder: Path, *requests: Record) -> tuple[TraceSession, TraceSession]:
    """Return the agent's session and the one subagent's."""
    parent, child = read(folder, *requests).sessions
    return parent, child


def test_times_are_those_of_the_calls(tmp_path: Path) -> None:
    """A call's think time is the gap before it, so it belongs to the step before."""
    first, last = read_steps(
        tmp_path, call(7, think_time=99.0, ttft=0.5), call(12, think_time=3.0)
    )
    assert (first.t_ms, first.llm_ms, first.ttft_ms, first.gap_ms) == (
        0,
        2000,
        500,
        3000,
    )
    assert (last.t_ms, last.gap_ms, last.next) == (5000, None, "end")


def test_a_tool_wait_is_one_call_without_a_name(tmp_path: Path) -> None:
    """All of the gap is its duration, and the flags say how little is known of it."""
    first, last = read_steps(tmp_path, call(0), call(5))
    (tool,) = first.tools
    assert (tool.name, tool.class_name, tool.start_ms, tool.dur_ms) == (
        None,
        None,
        0,
        3000,
    )
    assert (first.next, first.tool_ms, first.user_ms) == ("tool", 3000, None)
    assert first.gap_source == "upper_bound"
    assert first.q == ("gap_upper_bound", "resolution_1s", "no_tool_names")
    assert last.tools == ()


def test_a_wait_for_the_user_is_no_tool(tmp_path: Path) -> None:
    """Text in the next input is the user's."""
    first, _ = read_steps(
        tmp_path, call(0, stop="end_turn"), call(5, input_types=["text"])
    )
    assert (first.next, first.user_ms, first.tools) == ("user", 3000, ())
    assert (first.gap_source, first.q) == ("measured", ("resolution_1s",))


@pytest.mark.parametrize(("stop", "next"), [("end_turn", "user"), ("tool_use", "tool")])
@pytest.mark.parametrize("kinds", [["text", "tool_result", "tool_use"], None])
def test_where_the_input_tells_nothing_the_answer_decides(
    tmp_path: Path, stop: str, next: str, kinds: list[str] | None
) -> None:
    """A rewritten history holds every kind of input; other releases record none."""
    first, _ = read_steps(tmp_path, call(0, stop=stop), call(5, input_types=kinds))
    assert first.next == next


def test_after_an_answer_that_is_missing_the_gap_holds_the_call(tmp_path: Path) -> None:
    """Start to start is all that is known; no call of a tool is made up for it."""
    first, _ = read_steps(
        tmp_path, unanswered(0), call(9, input_types=["text"], think_time=400.0)
    )
    assert (first.llm_ms, first.gap_ms, first.gap_source) == (
        None,
        9000,
        "includes_llm",
    )
    assert (first.next, first.tools, first.tool_ms) == ("tool", (), None)
    assert first.q == ("gap_includes_llm", "resolution_1s", "no_tool_names")


def test_a_continued_input_shares_the_answer_too(tmp_path: Path) -> None:
    """All blocks agree and there is room for the answer: only the rest is new."""
    first, last = read_steps(tmp_path, call(0, [7, 8]), call(5, [7, 8, 9]))
    assert (first.input_tokens, first.prefix_tokens, first.new_tokens) == (133, 0, 133)
    assert (last.input_tokens, last.prefix_tokens, last.new_tokens) == (197, 143, 54)
    assert "compacted" not in last.q


def test_an_input_without_room_for_the_answer_shares_the_input(tmp_path: Path) -> None:
    """An answer that was dropped is not in the prefix."""
    _, last = read_steps(tmp_path, call(0, [7], out=500), call(5, [7, 8]))
    assert (last.prefix_tokens, last.new_tokens) == (69, 64)


def test_a_rewritten_input_shares_whole_blocks(tmp_path: Path) -> None:
    """What follows the first other block is new, and the step is flagged."""
    _, last = read_steps(tmp_path, call(0, [7, 8, 9]), call(5, [7, 1, 9]))
    assert (last.prefix_tokens, last.new_tokens) == (64, 133)
    assert "compacted" in last.q


def test_what_is_not_recorded_is_unknown(tmp_path: Path) -> None:
    """Missing blocks and counts are null and flagged, never zero."""
    bare = {"t": 5.0, "type": "n"}
    _, last = read_steps(tmp_path, call(0, [7]), bare)
    assert (last.model, last.input_tokens, last.output_tokens) == (None,) * 3
    assert (last.prefix_tokens, last.new_tokens, last.hash_ids) == (None,) * 3
    assert (last.llm_ms, last.q) == (None, ("no_token_counts",))


@given(
    before=st.lists(st.integers(0, 2), max_size=6),
    after=st.lists(st.integers(0, 2), max_size=6),
    answer=st.integers(0, 200),
)
def test_a_prefix_is_never_longer_than_either_side(
    before: list[int], after: list[int], answer: int
) -> None:
    """It ends at the first other block, in the input and in the context before it."""
    old_tokens, new_tokens = 64 * len(before) + 9, 64 * len(after) + 3
    old = Request(
        at_s=0, block_ids=before, input_tokens=old_tokens, output_tokens=answer
    )
    new = Request(at_s=1, block_ids=after, input_tokens=new_tokens)
    prefix = SharedPrefix.of(new, old, 64)
    assert prefix.tokens is not None
    assert prefix.tokens <= min(new_tokens, old_tokens + answer)
    assert before[: prefix.blocks] == after[: prefix.blocks]
    assert prefix.is_cut == (prefix.blocks < len(before))


def test_a_subagent_is_a_child_of_the_call_that_started_it(tmp_path: Path) -> None:
    """It stands where it ended: it began at that time less its duration."""
    parent, child = family(
        tmp_path,
        call(0),
        call(5),
        subagent(18, 10_000, call(0, [1]), call(5, [1, 2])),
        call(20, think_time=13.0),
    )
    (tool,) = parent.steps[1].tools
    assert (tool.start_ms, tool.dur_ms, tool.class_name, tool.status) == (
        1000,
        10_000,
        "subagent",
        "ok",
    )
    assert (tool.child, child.spawned_by) == (child.id, tool.id)
    assert (child.parent, child.blocking, child.arrival_ms) == (parent.id, True, 8000)
    assert [step.t_ms for step in child.steps] == [0, 5000]
    second = parent.steps[1]
    assert (second.next, second.tool_ms, second.gap_ms) == ("subagent", 10_000, 13_000)


def test_parallel_subagents_count_once(tmp_path: Path) -> None:
    """The tool time of a step is the union of its subagents."""
    trace = read(
        tmp_path,
        call(0),
        subagent(12, 10_000, call(0)),
        subagent(15, 10_000, call(0), agent_id="agent_002", status="failed"),
        call(20, think_time=18.0),
    )
    step = trace.sessions[0].steps[0]
    assert [tool.status for tool in step.tools] == ["ok", "error"]
    assert (len(trace.sessions), step.tool_ms) == (3, 13_000)


def test_a_subagent_that_outlives_the_next_call_does_not_block(tmp_path: Path) -> None:
    """The parent went on, so something else ended its wait."""
    parent, child = family(
        tmp_path, call(0), call(5), subagent(30, 28_000, call(0)), call(60)
    )
    first = parent.steps[0]
    assert not child.blocking
    assert first.next == "tool"
    assert [tool.dur_ms for tool in first.tools] == [None, 3000]


def test_a_subagents_times_may_be_those_of_the_recording(tmp_path: Path) -> None:
    """Where its first call is not at zero, its times need no shift."""
    parent, child = family(
        tmp_path, call(0), call(5), subagent(8, 10_000, call(8), call(12)), call(20)
    )
    assert (child.arrival_ms, [step.t_ms for step in child.steps]) == (8000, [0, 4000])
    assert child.spawned_by in [tool.id for tool in parent.steps[1].tools]


def test_subagents_without_a_parents_call_stand_alone(tmp_path: Path) -> None:
    """A recording may hold nothing but its subagents; ids stay apart."""
    inner = subagent(9, 9000, call(0))
    trace = read(tmp_path, inner, inner, subagent(9, 9000))
    assert [session.parent for session in trace.sessions] == [None, None]
    assert len({session.id for session in trace.sessions}) == 2


def test_calls_are_put_in_the_order_of_their_starts(tmp_path: Path) -> None:
    """Steps that had to move say so."""
    steps = read_steps(tmp_path, call(5, model="late"), call(0, model="early"))
    assert [step.model for step in steps] == ["early", "late"]
    assert all("reordered" in step.q for step in steps)


def test_blocks_of_two_recordings_never_look_equal(tmp_path: Path) -> None:
    """Ids only mean something in their file, and are numbered anew."""
    one, two = recording(call(0, [1, 2])), recording(call(0, [1, 3]), id="trace_2")
    paths = [write(tmp_path / "a.json", one), write(tmp_path / "b.json", two)]
    first, second = (step.hash_ids or () for step in read_traces(paths).steps)
    assert len(first) == len(second) == 2
    assert not set(first) & set(second)


def test_subagents_share_the_blocks_of_their_recording(tmp_path: Path) -> None:
    """Two lanes with the same system prompt hold the same block."""
    parent, child = family(tmp_path, call(0, [4]), subagent(9, 6000, call(0, [4, 5])))
    (first,), (inner,) = parent.steps, child.steps
    assert first.hash_ids is not None and inner.hash_ids is not None
    assert inner.hash_ids[:1] == first.hash_ids
    assert (first.hash_scope, first.block_size) == ("trace", 64)


def test_ids_are_hashed_unless_asked_for(tmp_path: Path) -> None:
    """Nothing of the recorded id is left, and the same id gives the same hash."""
    path = write(tmp_path / "r.json", recording(call(0), id="someone's session"))
    (hashed,), (again,) = read_traces([path]).sessions, read_traces([path]).sessions
    assert hashed.id == again.id
    assert "someone" not in hashed.id
    kept = read_traces([path], importers=[WekaImporter(hash_ids=False)])
    assert kept.sessions[0].id == "someone's session"


def test_one_file_may_hold_many_recordings(tmp_path: Path) -> None:
    """One a line, as later releases come; a repeated id gets a number."""
    one = recording(call(0))
    trace = read_traces([write(tmp_path / "traces.jsonl", one, one)])
    first, second = trace.sessions
    assert second.id == f"{first.id}~2"
    assert (trace.header.source.format, trace.header.source.files) == ("weka", 1)


def test_an_indented_file_is_read_too(tmp_path: Path) -> None:
    """One object over many lines is one recording."""
    path = write(tmp_path / "r.json", recording(call(0), call(5)), indent=1)
    assert read_traces([path]).step_count == 2


def test_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    """A later release may say more."""
    record = {**recording(call(0, novelty=[1])), "novelty": {"of": "later"}}
    assert read_traces([write(tmp_path / "r.json", record)]).step_count == 1


def test_a_file_that_breaks_off_is_named(tmp_path: Path) -> None:
    """It is told to be a damaged recording, not an unknown format."""
    path = write(tmp_path / "r.json", recording(call(0), call(5)))
    path.write_text(path.read_text()[:-40])
    with pytest.raises(TraceError, match=f"^{path}:1: the recording is damaged: .*"):
        read_traces([path])


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([call(0, input="many")], r"1: requests\[.*\].in: no cc-trace says so: "),
        ([call(0, input=-1)], r"1: requests\[.*\].in: no cc-trace says so: "),
        ([call(1e300)], r"1: requests\[.*\].t: no cc-trace says so: "),
        ([{"type": "n"}], r"1: requests\[.*\]: .*missing required field `t`"),
        ([], " the recording holds no call of a model"),
    ],
)
def test_what_cannot_be_is_named(
    tmp_path: Path, requests: list[Record], message: str
) -> None:
    """File, line and field come first, then what is wrong."""
    path = write(tmp_path / "r.json", recording(*requests))
    with pytest.raises(TraceError, match=f"^{path}:{message}"):
        read_traces([path])


def test_json_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    """A folder may hold other files with some of the names."""
    write(tmp_path / "other.json", {"requests": [], "hash_scope": "local"})
    write(tmp_path / "r.json", recording(call(0)))
    assert read_traces([tmp_path]).header.source.files == 1


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    """A file in one line is done when it has been read."""
    path = write(tmp_path / "r.json", recording(call(0)))
    seen: list[tuple[int, int]] = []
    read_traces([path], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_the_result_obeys_its_own_schema(tmp_path: Path) -> None:
    """What the importer makes, the strict reader takes back unchanged."""
    trace = read(
        tmp_path,
        call(0, [1]),
        subagent(9, 6000, call(0, [4]), unanswered(5)),
        call(12, [1, 2], think_time=-1.0),
        unanswered(15),
        call(16, [2], input_types=["text"]),
    )
    path = tmp_path / "t.jsonl"
    write_trace(trace, path)
    assert read_traces([path]).sessions == trace.sessions


def test_waits_replay_as_they_were_recorded(tmp_path: Path) -> None:
    """Prefills take 1 s for 100 tokens: then the tool's 3 s, and the user's 30 s."""
    trace = read(
        tmp_path,
        call(0, input=100, out=1),
        call(5, input=200, out=1, stop="end_turn"),
        call(40, input=300, out=1, input_types=["text"], think_time=30.0),
    )
    outcome = replay(*trace.sessions)
    assert outcome.submitted("trace_1") == [0, 4, 35]
    assert outcome.report.tools["unknown"].count == 1
