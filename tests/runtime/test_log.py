"""Logs: one line per event, named like it, with its fields, in both styles."""

import io
import json
import re

import msgspec
import pytest

from kvalet.runtime.telemetry import log_events, make_logger
from kvalet.scheduler import (
    CallId,
    Copied,
    CopyFailed,
    Event,
    PrefillDone,
    Restored,
    SessionId,
    ToolEnded,
    TurnAdmitted,
)

from .world import ask, open_world, use_tool, virtual

A = SessionId("a")
SAMPLES: dict[str, Event] = {
    "tool_ended": ToolEnded(
        at_s=2.0, session=A, call=CallId("a/1"), tool="Bash", seconds=1.5, status="ok"
    ),
    "copied": Copied(
        at_s=1.0, session=A, kv_tokens=104, nbytes=1040, seconds=0.5, tier="host"
    ),
    "copy_failed": CopyFailed(at_s=1.0, session=A, reason="0 bytes came"),
    "restored": Restored(
        at_s=3.0, session=A, kv_tokens=104, nbytes=1040, seconds=0.25, tier="host"
    ),
    "prefill_done": PrefillDone(
        at_s=4.0, session=A, computed_tokens=11, reused_tokens=104, expected_tokens=104
    ),
    "turn_admitted": TurnAdmitted(at_s=3.0, session=A, slot=0, forced=False),
}


def log_line(style: str, event: Event) -> str:
    """Return what logging one event writes."""
    file = io.StringIO()
    log_events(make_logger(style, file))(event)
    return file.getvalue()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_json_line_is_the_event(name: str) -> None:
    """One object a line: the event's name, its fields, a level, the time of day."""
    event = SAMPLES[name]
    text = log_line("json", event)
    assert text.count("\n") == 1
    record = json.loads(text)
    assert record.pop("event") == name
    assert record.pop("level") == "info"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", record.pop("timestamp"))
    expected = msgspec.structs.asdict(event)
    if isinstance(event, Copied | Restored):
        expected["ms"] = event.seconds * 1000
    assert record == expected


@pytest.mark.parametrize("name", SAMPLES)
def test_a_console_line_is_the_event(name: str) -> None:
    """One plain line: the event's name and every field as name=value, no colours."""
    event = SAMPLES[name]
    text = log_line("console", event)
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert name in text.split()
    for field, value in msgspec.structs.asdict(event).items():
        shown = repr(value) if " " in str(value) else str(value)
        assert f"{field}={shown}" in text


def test_what_is_bound_stands_on_every_line() -> None:
    """A caller's own fields, such as the policy, come with each event."""
    file = io.StringIO()
    observe = log_events(make_logger("json", file).bind(policy="park"))
    for event in SAMPLES.values():
        observe(event)
    records = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [record["event"] for record in records] == list(SAMPLES)
    assert {record["policy"] for record in records} == {"park"}


@virtual
async def test_a_run_logs_each_event_once_and_in_order() -> None:
    """The log of a park and a restore is the list of events, line for line."""
    file = io.StringIO()
    observe = log_events(make_logger("json", file))
    async with open_world("park") as world:
        session = world.session("a")
        await ask(session, 100)
        await use_tool(session, 50)
        await ask(session, 10)
    for event in world.events:
        observe(event)
    names = [json.loads(line)["event"] for line in file.getvalue().splitlines()]
    assert names == [
        "session_opened",
        *("turn_submitted", "turn_admitted", "prefill_started", "prefill_done"),
        *("decode_started", "decode_done"),
        *("tool_started", "copy_started", "copied", "released", "tool_ended"),
        *("turn_submitted", "turn_admitted", "restore_started", "restored"),
        *("prefill_started", "prefill_done", "decode_started", "decode_done"),
        *("session_closed", "released", "copy_forgotten"),
    ]
