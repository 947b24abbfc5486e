"""Who a client says that a call is from."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.runtime.wire.api import Api
from kvalet.runtime.wire.identity import Identity, identify
from kvalet.runtime.wire.request import parse_call

CODEX = {"user-agent": "codex_cli_rs/0.171.0"}


def read(headers: dict[str, str], **fields: object) -> Identity:
    """Return who a call with these headers and fields is from."""
    body = json.dumps({"model": "m", "messages": [], **fields}).encode()
    raw = tuple((name.encode(), value.encode()) for name, value in headers.items())
    return identify(raw, parse_call(Api.CHAT, body))


@pytest.mark.parametrize(
    ("headers", "source"),
    [
        ({"x-kvalet-session-id": "s"}, "kvalet"),
        ({"x-dynamo-session-id": "s"}, "dynamo"),
        ({"x-claude-code-session-id": "s"}, "claude-code"),
        ({"thread-id": "s", "session-id": "t", **CODEX}, "codex"),
        ({"session_id": "s", "originator": "codex_exec"}, "codex"),
        ({"x-deepseek-harness-session-id": "s"}, "deepseek-harness"),
        ({"x-litellm-session-id": "s"}, "litellm"),
        ({"x-session-id": "s"}, "x-session-id"),
        ({"x-session-affinity": "s"}, "x-session-id"),
        ({"x-smg-routing-key": "s"}, "routing-key"),
        ({"x-correlation-id": "s"}, "routing-key"),
    ],
)
def test_headers_name_sessions(headers: dict[str, str], source: str) -> None:
    """Each known client's header is read, and before any field of the body."""
    who = read(headers, session_id="other", prompt_cache_key="another")
    assert (who.session, who.source) == ("s", source)


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"session_id": "s"}, "session_id"),
        ({"agent_hint": {"session_id": "s"}}, "agent_hint"),
        ({"conversation": "s"}, "conversation"),
        ({"conversation": {"id": "s"}}, "conversation"),
        ({"prompt_cache_key": "s"}, "prompt_cache_key"),
        ({"metadata": {"user_id": '{"session_id":"s"}'}}, "metadata"),
        ({"metadata": {"user_id": "user_1_account__session_s"}}, "metadata"),
    ],
)
def test_fields_name_sessions(fields: dict[str, object], source: str) -> None:
    """So are fields, where no header says more."""
    who = read({}, **fields)
    assert (who.session, who.source) == ("s", source)


def test_the_first_rule_wins() -> None:
    """Our own header goes before those of others, and brings its own relations."""
    who = read(
        {
            "x-session-id": "c",
            "x-parent-session-id": "cp",
            "x-dynamo-session-id": "b",
            "x-dynamo-session-final": "true",
            "x-kvalet-session-id": "a",
            "x-kvalet-parent-session-id": "ap",
        }
    )
    assert (who.session, who.parent_session, who.final) == ("a", "ap", False)
    final = read({"x-kvalet-session-id": "a", "x-kvalet-session-final": "1"})
    assert final.final


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {}),
        ({"thread-id": "s"}, {}),  # not Codex: a name that anyone might use
        ({"x-session-id": "a" * 257}, {}),
        ({"x-session-id": "a\tb"}, {}),
        ({"x-session-id": ""}, {}),
        ({"traceparent": "00-1-1-01"}, {"user": "u", "safety_identifier": "u"}),
        ({}, {"metadata": {"user_id": "user_1"}}),
        ({}, {"metadata": "s", "conversation": 7, "agent_hint": [], "session_id": {}}),
    ],
)
def test_what_names_no_session(
    headers: dict[str, str], fields: dict[str, object]
) -> None:
    """Persons, traces, oddities and nothing at all leave it to the lineage."""
    who = read(headers, **fields)
    assert (who.session, who.source) == ("", "lineage")


def test_claude_code_says_more() -> None:
    """Its hints name agent, class, durations of tools, and compactions."""
    who = read(
        {
            "x-claude-code-session-id": "s",
            "x-claude-code-agent-id": "a1",
            "x-claude-code-parent-agent-id": "a0",
            "x-claude-code-agent-type": "Explore",
            "x-claude-code-request-class": "subagent",
            "x-claude-code-prev-tool-durations": "Bash=565;Read%3Ball=0;x;=3;Y=-1;Z=a",
            "x-claude-code-context-compacted": "auto",
            "x-stainless-read-timeout": "600",
            "x-stainless-retry-count": "2",
        }
    )
    assert who == Identity(
        session="s",
        source="claude-code",
        agent="a1",
        parent_agent="a0",
        agent_type="Explore",
        request_class="subagent",
        tools=(("Bash", 0.565), ("Read;all", 0.0)),
        compacted=True,
        read_timeout_s=600.0,
        retry=2,
    )
    assert read({"x-claude-code-request-class": "compaction"}).compacting
    assert read({"x-claude-code-compaction": "manual"}).compacting


def test_codex_says_more() -> None:
    """A child thread names its parent; metadata of the turn name a compaction."""
    who = read(
        {
            **CODEX,
            "thread-id": "child",
            "x-codex-parent-thread-id": "root",
            "x-openai-subagent": "review",
            "x-codex-turn-metadata": '{"request_kind":"compaction","turn_id":"t"}',
        }
    )
    assert (who.session, who.parent_session) == ("child", "root")
    assert (who.agent_type, who.request_class) == ("review", "compaction")
    assert who.compacting and not who.compacted


@pytest.mark.parametrize("timeout", ["", "None", "nan", "inf", "-1", "0", "x"])
def test_a_timeout_that_is_none(timeout: str) -> None:
    """Only a positive number of seconds is a deadline."""
    headers = {"x-stainless-read-timeout": timeout, "x-stainless-retry-count": timeout}
    assert read(headers).read_timeout_s is None
    assert read(headers).retry == 0


NAMES = (
    *("x-kvalet-session-id", "x-codex-turn-metadata", "user-agent", "thread-id"),
    *("x-claude-code-prev-tool-durations", "x-stainless-retry-count"),
    "x-stainless-read-timeout",
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES).map(str.encode),
            st.binary(max_size=20) | st.sampled_from((b"codex", b"A=1;B=%ff=2", b"[")),
        )
    )
)
def test_any_headers_are_read(headers: list[tuple[bytes, bytes]]) -> None:
    """Whatever stands in them, what comes out are short printable names."""
    call = parse_call(Api.CHAT, b'{"model":"m","messages":[]}')
    who = identify(tuple(headers), call)
    for name in (who.session, who.agent, who.source, *(name for name, _ in who.tools)):
        assert name.isprintable() and len(name) <= 256
    assert all(seconds >= 0 for _, seconds in who.tools)
