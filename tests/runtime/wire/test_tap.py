"""Answers watched as they pass by."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.runtime.wire.answer import Call, Timings, Usage
from kvalet.runtime.wire.api import Api
from kvalet.runtime.wire.shapes import error_answer, stream_error
from kvalet.runtime.wire.tap import Tap

from .answers import (
    CHAT,
    CHAT_WHOLE,
    COMPLETION,
    MESSAGE,
    MESSAGE_WHOLE,
    RESPONSE,
    RESPONSE_WHOLE,
    Event,
    call_delta,
    chunk,
    stream,
)

USAGE = Usage(prompt_tokens=10, cached_tokens=8, output_tokens=5)
CHAT_CALLS = (Call(id="c1", name="ls"), Call(id="c2", name="cat"))
RESPONSE_CALLS = (
    Call(id="c1", name="ls"),
    Call(id="c2", name="patch"),
    Call(id="c3", name="local_shell_call"),
    Call(id="mcpr_1", name="roll"),
)
MESSAGE_CALLS = (Call(id="t1", name="Bash"), Call(id="t2", name="Read"))
STREAMS = {
    Api.CHAT: stream(CHAT, done=True),
    Api.COMPLETIONS: stream(COMPLETION, done=True),
    Api.RESPONSES: stream(RESPONSE, named=True),
    Api.MESSAGES: stream(MESSAGE, named=True),
}
WHOLE = {
    Api.CHAT: CHAT_WHOLE,
    Api.RESPONSES: RESPONSE_WHOLE,
    Api.MESSAGES: MESSAGE_WHOLE,
}
TOLD = [
    (Api.CHAT, "tool_calls", CHAT_CALLS, "chatcmpl-1"),
    (Api.RESPONSES, "completed", RESPONSE_CALLS, "resp_1"),
    (Api.MESSAGES, "tool_use", MESSAGE_CALLS, "msg_1"),
]


def watched(api: Api, *pieces: bytes, streams: bool = True, choices: int = 1) -> Tap:
    """Return a tap that has seen *pieces*, but no end."""
    tap = Tap(api, streams=streams, choices=choices)
    for piece in pieces:
        tap.feed(piece)
    return tap


def facts(tap: Tap) -> tuple[object, ...]:
    """Return all that a tap knows."""
    told = (tap.finish, tap.calls, tap.usage, tap.response_id, tap.timings)
    return (*told, tap.complete, tap.failed, tap.answered, tap.first_token, tap.pieces)


@pytest.mark.parametrize(("api", "finish", "calls", "id"), TOLD)
def test_streams(api: Api, finish: str, calls: tuple[Call, ...], id: str) -> None:
    """A stream tells its calls, its finish and its usage, also without its end."""
    tap = watched(api, STREAMS[api])
    assert (tap.finish, tap.calls, tap.response_id) == (finish, calls, id)
    assert tap.usage == USAGE
    assert tap.complete and tap.answered and tap.first_token and not tap.failed


@pytest.mark.parametrize(("api", "finish", "calls", "id"), TOLD)
def test_whole_bodies(api: Api, finish: str, calls: tuple[Call, ...], id: str) -> None:
    """A body tells the same, at its end."""
    body = json.dumps(WHOLE[api]).encode()
    tap = watched(api, body[:100], body[100:], streams=False)
    assert not (tap.complete or tap.calls)
    tap.end()
    assert (tap.finish, tap.calls, tap.response_id) == (finish, calls, id)
    assert tap.usage == USAGE
    assert tap.complete and tap.answered and tap.first_token and not tap.failed


def test_completions() -> None:
    """A completion has texts, and no calls."""
    tap = watched(Api.COMPLETIONS, STREAMS[Api.COMPLETIONS])
    assert (tap.finish, tap.pieces, tap.calls) == ("length", 2, ())
    assert tap.complete


def test_timings_of_llama_cpp() -> None:
    """They are read from a stream and from a body alike."""
    whole = watched(Api.CHAT, json.dumps(CHAT_WHOLE).encode(), streams=False)
    whole.end()
    assert watched(Api.CHAT, STREAMS[Api.CHAT]).timings == whole.timings
    assert whole.timings == Timings(
        computed_tokens=2,
        reused_tokens=8,
        prefill_s=0.0205,
        output_tokens=5,
        decode_s=0.1,
    )


@pytest.mark.parametrize("api", Api)
@given(data=st.data())
def test_cuts_do_not_matter(api: Api, data: st.DataObject) -> None:
    """However a stream is split, the same is seen; also with other line ends."""
    body = STREAMS[api]
    if data.draw(st.booleans()):
        body = body.replace(b"\n", b"\r\n")
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=6))
    pieces = [body[a:b] for a, b in pairwise([0, *sorted(cuts), len(body)])]
    expected = facts(watched(api, STREAMS[api]))
    assert facts(watched(api, *pieces)) == expected


@pytest.mark.parametrize("api", Api)
def test_a_cut_at_every_byte(api: Api) -> None:
    """Two pieces, cut anywhere, and single bytes are no other stream."""
    body = STREAMS[api]
    expected = facts(watched(api, body))
    single = watched(api, *(body[i : i + 1] for i in range(len(body))))
    assert facts(single) == expected
    for cut in range(0, len(body), 7):
        assert facts(watched(api, body[:cut], body[cut:])) == expected


@pytest.mark.parametrize("api", [Api.RESPONSES, Api.MESSAGES])
def test_events_without_names(api: Api) -> None:
    """Servers that leave out the names of events are understood by the types."""
    events = RESPONSE if api is Api.RESPONSES else MESSAGE
    assert facts(watched(api, stream(events))) == facts(watched(api, STREAMS[api]))


def test_how_an_answer_begins() -> None:
    """A role is an answer but no token; a comment is neither."""
    tap = watched(Api.CHAT, b": waiting\n\n")
    assert not tap.answered
    tap.feed(stream([chunk({"role": "assistant", "content": ""})]))
    assert tap.answered and not tap.first_token
    tap.feed(stream([chunk({"reasoning_content": "Hm"})]))
    assert tap.first_token and tap.pieces == 1 and not tap.complete


def test_choices_side_by_side() -> None:
    """With several, the answer is complete when each is, and tools come first."""
    events = [
        chunk({"content": "a"}),
        chunk({}, "stop"),
        chunk(call_delta(0, "c1", "ls", "{}"), index=1),
    ]
    tap = watched(Api.CHAT, stream(events), choices=2)
    assert (tap.complete, tap.finish) == (False, "stop")
    tap.feed(stream([chunk({}, "tool_calls", index=1)]))
    assert (tap.complete, tap.finish) == (True, "tool_calls")
    assert tap.calls == (Call(id="c1", name="ls"),)


NO_CALLS: Event = {"tool_calls": [], "function_call": None}
ODD_CALLS: Event = {"tool_calls": [7, {"index": None, "function": 7}]}
WORDINGS: list[tuple[list[Event], tuple[Call, ...]]] = [
    (  # all calls in one place, each whole
        [call_delta(0, "c1", "ls", "{}"), call_delta(0, "c2", "cat", "{}")],
        CHAT_CALLS,
    ),
    (  # the id in every piece, the name late
        [
            call_delta(0, "c1", None, ""),
            call_delta(0, "c1", "ls", "{"),
            call_delta(0, "c1", "ls", "}"),
        ],
        CHAT_CALLS[:1],
    ),
    (  # no ids at all
        [call_delta(0, None, "ls", "{}"), call_delta(1, None, "cat", "{}")],
        (Call(id="", name="ls"), Call(id="", name="cat")),
    ),
    (  # before calls had ids
        [
            {"function_call": {"name": "ls", "arguments": "{"}},
            {"function_call": {"arguments": "}"}},
        ],
        (Call(id="ls", name="ls"),),
    ),
    ([NO_CALLS, {"tool_calls": None}], ()),
    ([ODD_CALLS], (Call(id="", name=""),)),
]


@pytest.mark.parametrize(("deltas", "calls"), WORDINGS)
def test_calls_as_servers_word_them(
    deltas: list[Event], calls: tuple[Call, ...]
) -> None:
    """A call is one call, however many pieces it comes in and whatever they lack."""
    assert watched(Api.CHAT, stream([chunk(each) for each in deltas])).calls == calls


@pytest.mark.parametrize("api", Api)
def test_errors_in_streams(api: Api) -> None:
    """An error in the place of an answer's rest fails it, whatever comes behind."""
    tap = watched(api, STREAMS[api][:200].rpartition(b"\n\n")[0] + b"\n\n")
    tap.feed(stream_error(api, "out of memory"))
    tap.feed(b"data: [DONE]\n\n")
    assert tap.failed and not tap.complete


@pytest.mark.parametrize("api", Api)
def test_errors_as_bodies(api: Api) -> None:
    """A refusal is no answer."""
    tap = watched(api, error_answer(api, status=400, message="no")[2], streams=False)
    tap.end()
    assert tap.failed and not tap.complete


def test_errors_of_an_old_llama_cpp() -> None:
    """It puts them in a field that events do not have."""
    assert watched(Api.CHAT, b'error: {"code":500,"message":"x"}\n\n').failed


@pytest.mark.parametrize("how", ["incomplete", "failed"])
def test_responses_that_end_otherwise(how: str) -> None:
    """Running out of room is an end; failing is none."""
    response = {
        **RESPONSE_WHOLE,
        "status": how,
        "incomplete_details": {"reason": "max_output_tokens"},
    }
    event: Event = {"type": f"response.{how}", "response": response}
    tap = watched(Api.RESPONSES, stream([event], named=True))
    assert tap.finish == "max_output_tokens"
    assert (tap.complete, tap.failed) == (how == "incomplete", how == "failed")


def test_a_corrected_usage_wins() -> None:
    """Servers that know the prompt's length at the end only say it there."""
    end = {"input_tokens": 20, "cache_read_input_tokens": 0, "output_tokens": 7}
    event: Event = {"type": "message_delta", "delta": {}, "usage": end}
    tap = watched(Api.MESSAGES, STREAMS[Api.MESSAGES], stream([event]))
    assert tap.usage == Usage(prompt_tokens=20, cached_tokens=0, output_tokens=7)


def test_an_event_without_its_empty_line() -> None:
    """What stands behind the last event counts when the body is over."""
    body = stream([chunk({"content": "a"})])
    tap = watched(Api.CHAT, body + b"data: [DONE]")
    assert not tap.complete
    tap.end()
    assert tap.complete


def test_what_is_too_large_is_not_watched() -> None:
    """Memory is bounded; what was seen before stays."""
    tap = watched(Api.CHAT, stream([chunk({"content": "a"})]))
    for _ in range(17):
        tap.feed(b"x" * (1 << 20))
    tap.feed(STREAMS[Api.CHAT])
    tap.end()
    assert tap.pieces == 1 and not tap.complete
    whole = watched(Api.CHAT, *[b" " * (1 << 20)] * 17, b"{}", streams=False)
    whole.end()
    assert whole.answered and not whole.complete


KEYS = st.sampled_from(
    (
        *("choices", "delta", "message", "content", "tool_calls", "function", "index"),
        *("usage", "timings", "prompt_ms", "prompt_n", "id", "name", "finish_reason"),
        *("response", "output", "item", "content_block", "prompt_tokens_details"),
    )
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=10,
)
TYPES = sorted({str(event["type"]) for event in (*RESPONSE, *MESSAGE)})


@pytest.mark.parametrize("api", Api)
@given(
    event=st.dictionaries(KEYS, JSON, max_size=4),
    kind=st.sampled_from(TYPES),
    junk=st.binary(max_size=20),
    streams=st.booleans(),
)
def test_nothing_that_passes_fails_a_tap(
    api: Api, event: Event, kind: str, junk: bytes, streams: bool
) -> None:
    """Whatever a server sends, watching it raises nothing."""
    said = {**event, "type": kind}
    body = stream([said]) + junk if streams else json.dumps(said).encode()
    tap = watched(api, body, streams=streams)
    tap.end()
    assert len(facts(tap)) == 10
