"""What model calls ask for."""

import json
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.runtime.wire.api import Api
from kvalet.runtime.wire.errors import BadRequest
from kvalet.runtime.wire.request import ParsedCall, edit, parse_call
from kvalet.runtime.wire.results import Result

USER = {"role": "user", "content": "Which files?"}
CALLS = {
    "role": "assistant",
    "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "ls", "arguments": "{}"}}
        for id in ("c1", "c2")
    ],
}
DONE = [{"role": "tool", "tool_call_id": f"c{n}", "content": "a b"} for n in (1, 2)]


def parsed(api: Api, **fields: object) -> ParsedCall:
    """Return how a call with these fields, and a model, is read."""
    return parse_call(api, json.dumps({"model": "m", **fields}).encode())


def test_a_chat() -> None:
    """What a chat completion asks for is found under its names."""
    call = parsed(
        Api.CHAT,
        messages=[USER],
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=5,
        max_completion_tokens=7,
        n=2,
    )
    assert (call.model, call.streams, call.includes_usage) == ("m", True, True)
    assert (call.max_output_tokens, call.choices) == (7, 2)
    assert (call.results, call.user_last) == ((), True)
    assert call.lineage.count == 2


def test_what_is_not_said_is_not_asked_for() -> None:
    """Absent fields and null are the same."""
    for extra in ({}, {"stream": None, "max_tokens": None, "n": None}):
        call = parsed(Api.CHAT, messages=[USER], **extra)
        assert not (call.streams or call.includes_usage or call.background)
        assert (call.max_output_tokens, call.choices) == (None, 1)
    assert parsed(Api.CHAT, messages=[], max_tokens=-1).max_output_tokens is None


@pytest.mark.parametrize(
    ("api", "field"),
    [(Api.CHAT, "messages"), (Api.MESSAGES, "messages"), (Api.RESPONSES, "input")],
)
def test_a_turn_continues_its_lineage(api: Api, field: str) -> None:
    """The request with the results shares all of the one that asked for them."""
    before = parsed(api, **{field: [USER]})
    after = parsed(api, **{field: [USER, CALLS, *DONE]})
    assert before.lineage.shared(after.lineage) == before.lineage.count == 2


def test_chat_results() -> None:
    """All results behind the last answer are found; those of earlier ones are not."""
    call = parsed(Api.CHAT, messages=[USER, CALLS, *DONE])
    assert [result.call_id for result in call.results] == ["c1", "c2"]
    assert not call.user_last
    spoken = parsed(Api.CHAT, messages=[USER, CALLS, *DONE, USER])
    assert (spoken.results, spoken.user_last) == (call.results, True)
    later = parsed(
        Api.CHAT,
        messages=[USER, CALLS, *DONE, {"role": "assistant", "content": "a"}, USER],
    )
    assert (later.results, later.user_last) == ((), True)
    legacy = [USER, {"role": "function", "name": "ls", "content": "a"}]
    assert parsed(Api.CHAT, messages=legacy).results == (Result(call_id="ls"),)


def test_anthropics_results() -> None:
    """Results are blocks of a user's message; a reminder beside them is no user."""
    done = {"type": "tool_result", "tool_use_id": "t1", "content": "a b"}
    failed = {"type": "tool_result", "tool_use_id": "t2", "is_error": True}
    reminder = {"type": "text", "text": "<system-reminder>"}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1"}]}
    back = {"role": "user", "content": [done, failed, reminder]}
    call = parsed(Api.MESSAGES, messages=[USER, use, back])
    assert call.results == (
        Result(call_id="t1"),
        Result(call_id="t2", failed=True),
    )
    assert not call.user_last
    asked = parsed(Api.MESSAGES, messages=[USER, use, back, use, USER])
    assert (asked.results, asked.user_last) == ((), True)


def test_responses_results() -> None:
    """Each kind of output ends its call, also behind a previous response."""
    items = [
        {"type": "function_call", "call_id": "f0", "name": "ls", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "f1", "output": "a"},
        {"type": "custom_tool_call_output", "call_id": "f2", "output": "a"},
        {"type": "mcp_approval_response", "approval_request_id": "f3"},
    ]
    call = parsed(Api.RESPONSES, input=items, previous_response_id="r1")
    assert [result.call_id for result in call.results] == ["f1", "f2", "f3"]
    assert call.previous_response_id == "r1"
    text = parsed(Api.RESPONSES, input="Which files?", background=True)
    assert (text.user_last, text.background, text.lineage.count) == (True, True, 2)
    assert parsed(Api.RESPONSES, previous_response_id="r1").lineage.count == 1


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [("text", 1), ([1, 2], 1), (["a", "b"], 2), ([[1], [2], [3]], 3), ([], 1)],
)
def test_completions(prompt: object, choices: int) -> None:
    """A prompt is a text or token ids, or several of these."""
    assert parsed(Api.COMPLETIONS, prompt=prompt).choices == choices


@pytest.mark.parametrize(
    ("api", "body", "says"),
    [
        (Api.CHAT, b'{"model": "m", ', "not valid JSON"),
        (Api.CHAT, b"\xff", "not valid JSON"),
        (Api.CHAT, b"[]", "JSON object"),
        (Api.CHAT, b"{}", "no model"),
        (Api.CHAT, b'{"model":7}', "model has to be the name of a model, not 7"),
        (Api.CHAT, b'{"model":"m"}', "no messages"),
        (Api.CHAT, b'{"model":"m","messages":"x"}', "a list of messages"),
        (Api.CHAT, b'{"model":"m","messages":[],"stream":"yes"}', 'not "yes"'),
        (Api.CHAT, b'{"model":"m","messages":[],"max_tokens":"x"}', "whole number"),
        (Api.CHAT, b'{"model":"m","messages":[],"n":0}', "at least 1, not 0"),
        (Api.CHAT, b'{"model":"m","messages":[],"stream_options":1}', "an object"),
        (Api.RESPONSES, b'{"model":"m"}', "no input"),
        (Api.RESPONSES, b'{"model":"m","input":7}', "a text or a list of items"),
        (Api.COMPLETIONS, b'{"model":"m"}', "no prompt"),
        (Api.COMPLETIONS, b'{"model":"m","prompt":7}', "list of token ids"),
        (Api.COMPLETIONS, b'{"model":"m","prompt":[1,"a"]}', "list of token ids"),
        (Api.COMPLETIONS, b'{"model":"m","prompt":[%d]}' % 2**63, "list of token"),
        (Api.MESSAGES, b'{"model":"m","messages":' + b"[" * 10**5, "nested|JSON"),
    ],
)
def test_what_makes_no_sense(api: Api, body: bytes, says: str) -> None:
    """It is refused with a sentence that names the field, and the value if short."""
    with pytest.raises(BadRequest, match=says) as refused:
        parse_call(api, body)
    assert refused.value.status == 400
    assert len(str(refused.value)) < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("role", "content", "type", "id", "tool_call_id", "text"))
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
NAMES = (
    *("messages", "input", "prompt", "stream", "max_tokens", "n", "stream_options"),
    *("system", "tools", "max_output_tokens", "previous_response_id", "background"),
)


@given(
    api=st.sampled_from(Api),
    fields=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6),
)
def test_any_json_is_read_or_refused(api: Api, fields: Mapping[str, object]) -> None:
    """Whatever a client sends, it gets an answer or a refusal, never a crash."""
    body = json.dumps({"model": "m", **fields}).encode()
    try:
        call = parse_call(api, body)
    except BadRequest:
        return
    assert call.lineage.count >= 1


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """Bodies that are no JSON at all are refused."""
    with pytest.raises(BadRequest):
        parse_call(Api.CHAT, body)


def test_edits_leave_the_rest_alone() -> None:
    """Numbers, escapes and unknown fields come out as they went in."""
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}],'
        b'"temperature":1.0e-1,"seed":12345678901234567890123,"x":{"b":1,"a":[ ]}}'
    )
    fields = parse_call(Api.CHAT, body).fields
    assert edit(fields, {}) == body
    changed = edit(fields, {"id_slot": 3}, without=("seed",))
    assert changed == body.replace(b',"seed":12345678901234567890123', b"").replace(
        b"}}", b'},"id_slot":3}'
    )
    assert msgspec.json.decode(changed)["id_slot"] == 3
