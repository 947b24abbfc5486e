"""Claude Code sessions become traces: times, sizes and kin kept, text dropped."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvalet.runtime.traces import (
    ClaudeCodeImporter,
    Trace,
    TraceError,
    encode_trace,
    read_traces,
    write_trace,
)

from .claude_log import ClaudeLog

BASH = ("tool-1", "Bash", {"command": "pytest -q"})


def read(log: ClaudeLog, folder: Path) -> Trace:
    """Write a log and read it with its ids kept."""
    path = log.write(folder / f"{log.session}-{log.agent}.jsonl")
    return read_traces([path], importers=[ClaudeCodeImporter(hash_ids=False)])


def one_call(result: dict[str, Any], name: str = "Bash") -> ClaudeLog:
    """A log of one tool call that lasts two seconds, and an answer."""
    log = ClaudeLog()
    log.user("please")
    log.wait(3)
    log.assistant(tools=(("tool-1", name, {"command": "make"}),))
    log.wait(2)
    log.result("tool-1", **result)
    log.wait(1)
    log.assistant(text="there")
    return log


def test_times_are_those_of_the_records(tmp_path: Path) -> None:
    """Model call, tool call and gap follow from the time stamps, in milliseconds."""
    first, last = read(one_call({}), tmp_path).sessions[0].steps
    (tool,) = first.tools
    assert (first.t_ms, first.llm_ms, first.tool_ms, first.gap_ms) == (
        0,
        3000,
        2000,
        2000,
    )
    assert (tool.start_ms, tool.dur_ms, tool.status) == (0, 2000, "ok")
    assert (last.t_ms, last.llm_ms, last.gap_ms) == (5000, 1000, None)
    assert (first.next, last.next) == ("tool", "end")
    assert first.gap_source == "measured"


def test_records_of_one_message_are_one_step(tmp_path: Path) -> None:
    """Usage is that of the last word, no sum; the call ends with its last block."""
    log = ClaudeLog()
    log.user("please")
    log.wait(1)
    log.assistant("m1", text="let me look", tokens=(5, 100, 1000, 1))
    log.wait(1)
    log.assistant("m1", tools=(BASH,), tokens=(5, 100, 1000, 90))
    log.wait(4)
    log.result("tool-1")
    (step,) = read(log, tmp_path).sessions[0].steps
    assert (step.input_tokens, step.cached_tokens, step.output_tokens) == (
        1105,
        1000,
        90,
    )
    assert (step.llm_ms, step.tools[0].dur_ms, step.q) == (2000, 4000, ())


def test_parallel_calls_count_once(tmp_path: Path) -> None:
    """tool_ms is the union; a call emitted early starts before the model call ends."""
    log = ClaudeLog()
    log.user("please")
    log.assistant("m1", tools=(BASH,))
    log.wait(1)
    log.assistant("m1", tools=(("tool-2", "Read", {}),))
    log.wait(2)
    log.result("tool-1")
    log.wait(1)
    log.result("tool-2")
    log.assistant(text="done")
    step = read(log, tmp_path).sessions[0].steps[0]
    assert [tool.start_ms for tool in step.tools] == [-1000, 0]
    assert [tool.dur_ms for tool in step.tools] == [3000, 3000]
    assert (step.tool_ms, step.gap_ms, step.overhead_ms) == (3000, 3000, 0)


def test_synthetic_messages_are_no_steps(tmp_path: Path) -> None:
    """They are written by the client, and no model was called."""
    log = one_call({})
    log.assistant(text="API Error", model="<synthetic>")
    assert read(log, tmp_path).step_count == 2


def test_placeholder_outputs_are_estimated_and_flagged(tmp_path: Path) -> None:
    """One token for 360 characters is the start of a message: 3.6 to a token."""
    log = ClaudeLog()
    log.user("please")
    log.assistant(text="x" * 360, tokens=(10, 0, 0, 1))
    log.assistant(text="x" * 360, tokens=(10, 0, 0, 90))
    first, last = read(log, tmp_path).sessions[0].steps
    assert (first.output_tokens, first.q) == (100, ("output_tokens_estimated",))
    assert (last.output_tokens, last.q) == (90, ())


def test_missing_usage_is_unknown(tmp_path: Path) -> None:
    """Unknown sizes are null and flagged, never zero."""
    log = ClaudeLog()
    log.user("please")
    log.assistant(text="hello there", tokens=None)
    (step,) = read(log, tmp_path).steps
    assert (step.input_tokens, step.cached_tokens, step.new_tokens) == (None,) * 3
    assert step.q == ("output_tokens_estimated", "no_token_counts")


@pytest.mark.parametrize(
    ("result", "status"),
    [
        ({}, "ok"),
        ({"content": "Exit code 1", "is_error": True}, "error"),
        ({"content": "Command timed out after 2m 0s", "is_error": True}, "timeout"),
        ({"content": [{"type": "text", "text": "timed out after 30s"}]}, "timeout"),
        ({"content": "x" * 300 + " timed out after 30s", "is_error": True}, "error"),
        (
            {
                "content": "The user doesn't want to proceed with this tool use.",
                "is_error": True,
            },
            "cancelled",
        ),
        ({"report": {"interrupted": True}}, "cancelled"),
        ({"report": "Error: no such file", "is_error": True}, "error"),
    ],
)
def test_status_of_a_call(result: dict[str, Any], status: str, tmp_path: Path) -> None:
    """A result says how its call ended; a program's own words do not."""
    (tool,) = read(one_call(result), tmp_path).tools
    assert tool.status == status


def test_only_shells_have_time_limits(tmp_path: Path) -> None:
    """A page that could not be fetched in time is an error of that tool."""
    result = {"content": "timed out after 30s", "is_error": True}
    (tool,) = read(one_call(result, name="WebFetch"), tmp_path).tools
    assert tool.status == "error"


def test_a_call_without_a_result_is_open(tmp_path: Path) -> None:
    """Its duration is unknown."""
    log = ClaudeLog()
    log.user("please")
    log.assistant(tools=(BASH,))
    (tool,) = read(log, tmp_path).tools
    assert (tool.status, tool.dur_ms) == ("open", None)


@pytest.mark.parametrize(
    ("report", "internal_ms"),
    [
        ({"durationMs": 1500}, 1500),
        ({"durationSeconds": 1.25}, 1250),
        ({"totalDurationMs": 900}, 900),
        ({"stdout": ""}, None),
        ("text", None),
    ],
)
def test_internal_durations(
    report: Any, internal_ms: int | None, tmp_path: Path
) -> None:
    """What a tool reports of itself stands beside the wall time."""
    (tool,) = read(one_call({"report": report}), tmp_path).tools
    assert (tool.dur_ms, tool.internal_ms) == (2000, internal_ms)


def test_waits_for_the_user_are_apart(tmp_path: Path) -> None:
    """What the tool took is a tool wait, the rest until the user spoke is not."""
    log = ClaudeLog()
    log.user("please")
    log.assistant("m1", tools=(BASH,))
    log.wait(2)
    log.result("tool-1")
    log.user("<note>", isMeta=True)
    log.assistant("m2", text="which one?")
    log.wait(60)
    log.user("the first")
    log.assistant("m3", text="fine")
    first, second, _ = read(log, tmp_path).sessions[0].steps
    assert (first.next, first.user_ms, first.tool_ms) == ("tool", 0, 2000)
    assert (second.next, second.user_ms, second.tool_ms) == ("user", 60_000, 0)
    assert (second.gap_ms, second.overhead_ms) == (60_000, None)


def test_prefixes_come_from_input_sizes(tmp_path: Path) -> None:
    """A context that grew begins with the one before, output included."""
    log = ClaudeLog()
    log.user("please")
    for id, tokens in (("m1", 1000), ("m2", 1500), ("m3", 1520)):
        log.assistant(id, text="word", tokens=(tokens, 0, 0, 50))
        log.user("more")
    steps = read(log, tmp_path).sessions[0].steps
    assert [step.prefix_tokens for step in steps] == [0, 1050, 1520]
    assert [step.new_tokens for step in steps] == [1000, 450, 0]


def test_compaction_is_flagged(tmp_path: Path) -> None:
    """After it, no more than what the lane began with can be shared."""
    log = ClaudeLog()
    log.user("please")
    for id, tokens in (("m1", 1000), ("m2", 9000), ("m3", 3000)):
        log.assistant(id, text="word", tokens=(tokens, 0, 0, 50))
        log.user("more")
    log.user("summary", isCompactSummary=True)
    log.assistant("m4", text="word", tokens=(4000, 0, 0, 50))
    steps = read(log, tmp_path).sessions[0].steps
    assert [step.q for step in steps] == [(), (), ("compacted",), ("compacted",)]
    assert steps[2].prefix_tokens == 1000


def test_a_class_is_kept_and_the_command_is_not(tmp_path: Path) -> None:
    """No text, path, argument, prompt or id of a recording is in the trace."""
    log = ClaudeLog(session="secret-session")
    log.user("secret prompt")
    given = {"command": "pytest secret/", "description": "secret"}
    log.assistant(text="secret words", tools=(("secret-id", "Bash", given),))
    log.result("secret-id", "secret output", report={"stdout": "secret"})
    path = log.write(tmp_path / "log.jsonl")
    trace = read_traces([path])
    (tool,) = trace.tools
    assert (tool.class_name, tool.output_bytes) == ("test", len("secret output"))
    assert tool.input_bytes == len(json.dumps(given))
    assert b"secret" not in b"".join(encode_trace(trace))


def subagent_prompt() -> dict[str, Any]:
    """Input of a call that spawns a subagent."""
    return {"prompt": "look around", "subagent_type": "Explore"}


@pytest.mark.parametrize("name", ["Task", "Agent"])
def test_an_inline_sidechain_is_a_session(name: str, tmp_path: Path) -> None:
    """Old files hold subagents inline; the prompt tells which call spawned one."""
    log = ClaudeLog()
    log.user("please")
    log.assistant("m1", tools=(("tool-1", name, subagent_prompt()),))
    log.side_chain = True
    log.record(
        "user", parentUuid=None, message={"role": "user", "content": "look around"}
    )
    log.wait(5)
    log.assistant("s1", text="seen")
    log.side_chain = False
    log.result("tool-1")
    log.assistant("m2", text="done")
    trace = read(log, tmp_path)
    parent, child = trace.sessions
    assert (child.parent, child.spawned_by) == (parent.id, "tool-1")
    assert child.blocking and child.class_name == "subagent"
    assert [tool.child for tool in parent.tools] == [child.id]
    assert parent.steps[0].next == "subagent"
    assert [len(session.steps) for session in trace.sessions] == [2, 1]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_subagent_may_have_a_file_of_its_own(is_async: bool, tmp_path: Path) -> None:
    """New files link it by an agent id; a background one does not block."""
    main, agent = ClaudeLog(), ClaudeLog(agent="abc")
    main.user("please")
    main.assistant("m1", tools=(("tool-1", "Task", subagent_prompt()),))
    agent.user("other words")
    agent.wait(7)
    agent.assistant("s1", text="seen")
    main.wait(8)
    status = "async_launched" if is_async else "completed"
    main.result("tool-1", report={"agentId": "abc", "status": status})
    main.write(tmp_path / "S1.jsonl")
    agent.write(tmp_path / "agent-abc.jsonl")
    trace = read_traces([tmp_path], importers=[ClaudeCodeImporter(hash_ids=False)])
    parent, child = trace.sessions
    assert (child.id, child.parent, child.spawned_by) == ("S1/abc", "S1", "tool-1")
    assert child.blocking is not is_async
    assert parent.steps[0].tools[0].child == "S1/abc"


def test_two_subagents_with_one_prompt_have_a_call_each(tmp_path: Path) -> None:
    """A call that is spoken for is not given to the next subagent."""
    main = ClaudeLog()
    main.user("please")
    calls = tuple((f"tool-{i}", "Task", subagent_prompt()) for i in (1, 2))
    main.assistant("m1", tools=calls)
    main.write(tmp_path / "S1.jsonl")
    for name in ("abc", "def"):
        agent = ClaudeLog(agent=name)
        agent.user("look around")
        agent.assistant(text="seen")
        agent.write(tmp_path / f"agent-{name}.jsonl")
    trace = read_traces([tmp_path], importers=[ClaudeCodeImporter(hash_ids=False)])
    spawned = [session.spawned_by for session in trace.sessions if session.parent]
    assert sorted(map(str, spawned)) == ["tool-1", "tool-2"]


def test_a_subagent_of_an_unknown_call_does_not_block(tmp_path: Path) -> None:
    """Its parent is the main lane of the session; nothing waits for it."""
    main, agent = ClaudeLog(), ClaudeLog(agent="abc")
    for log in (main, agent):
        log.user("words")
        log.assistant(text="more words")
    main.write(tmp_path / "S1.jsonl")
    agent.write(tmp_path / "agent-abc.jsonl")
    trace = read_traces([tmp_path], importers=[ClaudeCodeImporter(hash_ids=False)])
    child = trace.session("S1/abc")
    assert (child.parent, child.spawned_by, child.blocking) == ("S1", None, False)


def test_a_resumed_session_does_not_count_twice(tmp_path: Path) -> None:
    """A new file repeats the records of the old one; only what is new counts."""
    old = one_call({})
    old.write(tmp_path / "a.jsonl")
    new = ClaudeLog(session="S2")
    new.lines = [line.replace('"S1"', '"S2"') for line in old.lines]
    new.now_s = 100
    new.user("go on")
    new.assistant(text="gladly")
    new.write(tmp_path / "b.jsonl")
    trace = read_traces([tmp_path], importers=[ClaudeCodeImporter(hash_ids=False)])
    assert {s.id: len(s.steps) for s in trace.sessions} == {"S1": 2, "S2": 1}
    assert trace.tool_count == 1


def test_a_fork_with_new_uuids_does_not_count_twice(tmp_path: Path) -> None:
    """Message ids and tool call ids give a copy away as well."""
    old = one_call({})
    old.write(tmp_path / "a.jsonl")
    new = ClaudeLog(session="S2")
    new.lines = [line.replace("S1-None-", "copy-") for line in old.lines]
    new.lines = [line.replace("msg-copy-", "msg-S1-None-") for line in new.lines]
    new.write(tmp_path / "b.jsonl")
    assert read_traces([tmp_path]).step_count == 2


def test_corrupt_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    """The step before the hole is flagged, and the header has the number."""
    log = one_call({})
    log.lines.insert(2, '{"type": "user", "mess')
    trace = read(log, tmp_path)
    assert trace.flags() == {"truncated": 1}
    assert trace.header.source.note == "1 corrupt lines skipped"


def test_records_of_other_types_are_not_corrupt(tmp_path: Path) -> None:
    """New record types come with every version, in shapes of their own."""
    log = one_call({})
    log.record("weather", message=["any", "shape"], timestamp="tomorrow")
    trace = read(log, tmp_path)
    assert (trace.flags(), trace.header.source.note) == ({}, None)


def test_a_named_file_without_a_call_is_an_error(tmp_path: Path) -> None:
    """The message names file and line; in a folder, such a file is only counted."""
    empty = ClaudeLog("S9")
    empty.user("hello?")
    path = empty.write(tmp_path / "empty.jsonl")
    with pytest.raises(TraceError, match=f"^{path}:1: the recording holds no call"):
        read_traces([path])
    one_call({}).write(tmp_path / "good.jsonl")
    assert read_traces([tmp_path]).step_count == 2


def test_a_file_of_corrupt_lines_is_an_error(tmp_path: Path) -> None:
    """The importer names the first line that it could not read."""
    path = tmp_path / "log.jsonl"
    path.write_text("\n{\n{\n")
    with pytest.raises(
        TraceError, match=f"^{path}:2: no line of this file can be read"
    ):
        ClaudeCodeImporter().read([path], lambda length_bytes: None)


def test_steps_are_put_in_order(tmp_path: Path) -> None:
    """A file whose records run backwards is sorted, and flagged."""
    log = ClaudeLog()
    log.now_s = 50
    log.user("second")
    log.wait(1)
    log.assistant("m2", text="second")
    other = ClaudeLog()
    other.user("first", uuid="u1")
    other.wait(1)
    other.assistant("m1", text="first")
    log.lines += [line.replace("S1-None-", "other-") for line in other.lines]
    steps = read(log, tmp_path).sessions[0].steps
    times_ms = [step.t_ms or 0 for step in steps]
    assert times_ms == sorted(times_ms)
    assert all(step.q == ("reordered",) for step in steps)


def test_an_imported_trace_obeys_the_rules(tmp_path: Path) -> None:
    """The strict reader takes back what the importer made."""
    log = one_call({"is_error": True})
    (tmp_path / "in").mkdir()
    log.write(tmp_path / "in" / "log.jsonl")
    trace = read_traces([tmp_path / "in"])
    write_trace(trace, tmp_path / "out.jsonl")
    assert read_traces([tmp_path / "out.jsonl"]) == trace


def test_arrivals_count_from_the_first_call(tmp_path: Path) -> None:
    """Sessions keep their distance in time."""
    early, late = one_call({}), ClaudeLog("S2")
    late.now_s = 30
    late.user("hi")
    late.assistant(text="hello")
    early.write(tmp_path / "z.jsonl")
    late.write(tmp_path / "a.jsonl")
    trace = read_traces([tmp_path], importers=[ClaudeCodeImporter(hash_ids=False)])
    assert [(s.id, s.arrival_ms) for s in trace.sessions] == [("S1", 0), ("S2", 30_000)]


@pytest.mark.parametrize(
    "line",
    [
        {"type": "summary", "summary": "words", "leafUuid": "u1"},
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
        {"type": "mode", "mode": "normal", "sessionId": "S1"},
    ],
)
def test_a_file_may_open_with_other_records(line: dict[str, Any]) -> None:
    """Each of the records that a session file can begin with gives it away."""
    assert ClaudeCodeImporter().detects([b"{oops", json.dumps(line).encode()])
    assert not ClaudeCodeImporter().detects([b'{"type": "summary"}', b"[]", b"{}"])
