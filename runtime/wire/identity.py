"""Which session a call says it belongs to, and what else its client says of itself.

Clients name sessions in headers and fields of many kinds; the first rule that finds a
name wins. No name is a key of KV state: agents put side calls and subagents under one
id, so what a conversation begins with decides within a session, and no name reaches
beyond the tenant that gave it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import msgspec

from ...backends.http import Headers
from .json_values import is_object
from .request import ParsedCall

_LONGEST_NAME_CHARACTERS = 256
_MOST_TOOLS = 32
_TRUE = frozenset(("1", "true", "yes"))

Named = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a client says of a call's place; "" wherever it says nothing.

    ``source`` is the rule that found ``session``. ``final``: the session ends with this
    call. ``compacting``: the call is to shorten its context, ``compacted``: it comes
    with a context that has been shortened. ``tools`` are names and seconds of the tools
    that ran before it. After ``read_timeout_s`` of silence the client gives up.
    """

    session: str = ""
    agent: str = ""
    parent_session: str = ""
    parent_agent: str = ""
    final: bool = False
    source: str = "lineage"
    request_class: str = ""
    agent_type: str = ""
    compacted: bool = False
    compacting: bool = False
    tools: tuple[tuple[str, float], ...] = ()
    read_timeout_s: float | None = None
    retry: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """Session ids in ``sessions``; the other headers speak of that session."""

    source: str
    sessions: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    finals: tuple[str, ...] = ()
    when: Callable[[Named], bool] = lambda named: True


def _is_codex(named: Named) -> bool:
    # Others send headers of these names as well, with other meanings.
    return (
        "codex" in (named.get("user-agent", "") + named.get("originator", "")).lower()
    )


_HEADER_RULES = (
    _Rule(
        source="kvalet",
        sessions=("x-kvalet-session-id",),
        parents=("x-kvalet-parent-session-id",),
        finals=("x-kvalet-session-final",),
    ),
    _Rule(
        source="dynamo",
        sessions=("x-dynamo-session-id",),
        parents=("x-dynamo-parent-session-id",),
        finals=("x-dynamo-session-final",),
    ),
    _Rule(source="claude-code", sessions=("x-claude-code-session-id",)),
    _Rule(
        source="codex",
        sessions=("thread-id", "session-id", "session_id", "conversation_id"),
        parents=("x-codex-parent-thread-id",),
        when=_is_codex,
    ),
    _Rule(
        source="deepseek-harness",
        sessions=("x-deepseek-harness-session-id",),
        parents=("x-deepseek-harness-parent-session-id",),
    ),
    _Rule(source="litellm", sessions=("x-litellm-session-id",)),
    _Rule(
        source="x-session-id",
        sessions=("x-session-id", "x-session-affinity"),
        parents=("x-parent-session-id",),
    ),
    _Rule(source="routing-key", sessions=("x-smg-routing-key", "x-correlation-id")),
)

# Fields of a body, as paths, in the order in which they are asked.
_FIELD_RULES = (
    ("session_id", ("session_id",)),
    ("agent_hint", ("agent_hint", "session_id")),
    ("conversation", ("conversation",)),
    ("conversation", ("conversation", "id")),
    ("prompt_cache_key", ("prompt_cache_key",)),
)

_AGENTS = ("x-kvalet-agent-id", "x-claude-code-agent-id")
_PARENT_AGENTS = ("x-kvalet-parent-agent-id", "x-claude-code-parent-agent-id")
_AGENT_TYPES = ("x-claude-code-agent-type", "x-openai-subagent")
_TIMEOUTS = ("x-stainless-read-timeout", "x-stainless-timeout")


def identify(headers: Headers, parsed: ParsedCall) -> Identity:
    """Return what *headers* (of lower-case names) and body say of the call's place.

    A value that is too long for a name or can't be printed counts as not said.
    """
    named = _printable(headers)
    turn = _json_object(_first_value(headers, b"x-codex-turn-metadata"))
    kind = _name(turn.get("request_kind"))
    request_class = named.get("x-claude-code-request-class", "") or kind
    session, rule = _session(named, parsed)
    return Identity(
        session=session,
        agent=_first(named, _AGENTS),
        parent_session=_first(named, rule.parents),
        parent_agent=_first(named, _PARENT_AGENTS),
        final=_first(named, rule.finals).lower() in _TRUE,
        source=rule.source,
        request_class=request_class,
        agent_type=_first(named, _AGENT_TYPES),
        compacted="x-claude-code-context-compacted" in named,
        compacting="x-claude-code-compaction" in named
        or request_class == "compaction"
        or named.get("x-deepseek-harness-compact", "").lower() in _TRUE,
        tools=_durations(_first_value(headers, b"x-claude-code-prev-tool-durations")),
        read_timeout_s=_positive(_first(named, _TIMEOUTS)),
        retry=_count(named.get("x-stainless-retry-count", "")),
    )


def _session(named: Named, parsed: ParsedCall) -> tuple[str, _Rule]:
    """Return the session and the rule that found it; fields have no further headers."""
    for rule in _HEADER_RULES:
        session = _first(named, rule.sessions)
        if session and rule.when(named):
            return session, rule
    for source, path in _FIELD_RULES:
        session = _name(_at(parsed, path))
        if session:
            return session, _Rule(source=source)
    session = _of_user_id(_at(parsed, ("metadata", "user_id")))
    return session, _Rule(source="metadata" if session else "lineage")


# ---- headers -------------------------------------------------------------------------


def _printable(headers: Headers) -> Named:
    """Return the headers whose values may be names; the first of each name counts."""
    named: Named = {}
    for name, value in reversed(headers):
        text = _name(value.decode(errors="replace").strip())
        if text:
            named[name.decode("latin-1")] = text
    return named


def _first(named: Named, names: tuple[str, ...]) -> str:
    return next((named[name] for name in names if name in named), "")


def _first_value(headers: Headers, name: bytes) -> bytes:
    return next((value for each, value in headers if each == name), b"")


def _name(value: object) -> str:
    """Return *value* if it is fit to be a name, else ""."""
    if not isinstance(value, str) or not value.isprintable() or "\ufffd" in value:
        return ""
    return value if len(value) <= _LONGEST_NAME_CHARACTERS else ""


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _durations(value: bytes) -> tuple[tuple[str, float], ...]:
    """Return names and seconds of a list like ``Bash=565;Read%20all=12``."""
    found: list[tuple[str, float]] = []
    for entry in value.split(b";")[:_MOST_TOOLS]:
        spelled, _, milliseconds = entry.strip().rpartition(b"=")
        name = _name(unquote_to_bytes(spelled).decode(errors="replace"))
        took_ms = _positive(milliseconds.decode(errors="replace"))
        if name and (took_ms is not None or milliseconds == b"0"):
            found.append((name, (took_ms or 0.0) / 1000))
    return tuple(found)


# ---- bodies --------------------------------------------------------------------------


def _at(parsed: ParsedCall, path: tuple[str, ...]) -> object:
    """Return what the body has at *path*; None where it has nothing there."""
    raw = parsed.fields.get(path[0])
    if raw is None:
        return None
    value = _decoded(bytes(raw))
    for name in path[1:]:
        value = value.get(name) if is_object(value) else None
    return value


def _of_user_id(user_id: object) -> str:
    """Return the session in Claude Code's ``metadata.user_id``, new form or old."""
    if not isinstance(user_id, str):
        return ""
    if user_id.startswith("{"):
        return _name(_json_object(user_id.encode()).get("session_id"))
    return _name(user_id.rpartition("_session_")[2]) if "_session_" in user_id else ""


def _json_object(text: bytes) -> dict[str, object]:
    value = _decoded(text) if text else None
    return value if is_object(value) else {}


def _decoded(text: bytes) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
