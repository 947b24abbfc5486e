"""What a model call asks for, as far as a scheduler has to know it.

Only that is read, and only that is refused where it makes no sense: anything else is
the server's to judge. Fields that nobody here knows stay as the client has spelled
them, to the byte.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from .api import Api
from .errors import BadRequest
from .json_values import is_list
from .lineage import (
    Lineage,
    canonical_head,
    canonical_items,
    lineage,
    plain_head,
    text_blocks,
    token_blocks,
)
from .results import Result, closing_results

T = TypeVar("T")

Fields = dict[str, msgspec.Raw]

_MARK = b'"cache_control"'
_SHOWN_CHARACTERS = 40

# A newer name goes before an older one.
_MOST_TOKENS = {
    Api.CHAT: ("max_completion_tokens", "max_tokens"),
    Api.COMPLETIONS: ("max_tokens",),
    Api.RESPONSES: ("max_output_tokens",),
    Api.MESSAGES: ("max_tokens",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A model call in its own API.

    ``max_output_tokens`` is per choice, None where the call sets no bound. ``results``
    are those of the tool calls that the call brings back; ``user_last``: a user has
    spoken after them. ``includes_usage``: a stream is to end with its usage.
    """

    api: Api
    model: str
    streams: bool
    max_output_tokens: int | None
    choices: int
    includes_usage: bool
    lineage: Lineage
    results: tuple[Result, ...]
    user_last: bool
    previous_response_id: str | None
    background: bool
    fields: Fields


def parse_call(api: Api, body: bytes) -> ParsedCall:
    """Return what *body* asks for; raise BadRequest where it makes no sense."""
    fields = _fields(body)
    model = _read(fields, "model", str, "the name of a model")
    if not model:
        raise BadRequest("the request names no model", param="model")
    options = _read(fields, "stream_options", Fields, "an object") or {}
    items = _items(api, fields)
    prompts, path = _path(api, fields, items, _MARK in body)
    results, user_last = closing_results(api, items) if items else ((), True)
    return ParsedCall(
        api=api,
        model=model,
        streams=_flag(fields, "stream"),
        max_output_tokens=_most_tokens(api, fields),
        choices=_choices(api, fields) * prompts,
        includes_usage=_flag(options, "include_usage"),
        lineage=path,
        results=results,
        user_last=user_last,
        previous_response_id=_read(fields, "previous_response_id", str, "an id"),
        background=_flag(fields, "background"),
        fields=fields,
    )


def edit(
    fields: Mapping[str, msgspec.Raw],
    changes: Mapping[str, object],
    without: Collection[str] = (),
) -> bytes:
    """Return a body with *changes* to its fields, and *without* some of them.

    All other fields keep their order and their spelling.

    >>> fields = parse_call(
    ...     Api.CHAT, b'{"model": "m", "x": 1.50, "n": 1, "messages": []}'
    ... ).fields
    >>> edit(fields, {"stream": True}, without=["n"])
    b'{"model":"m","x":1.50,"messages":[],"stream":true}'
    """
    edited: dict[str, object] = {**fields, **changes}
    for name in without:
        edited.pop(name, None)
    return msgspec.json.encode(edited)


# ---- fields --------------------------------------------------------------------------


def _fields(body: bytes) -> Fields:
    try:
        return msgspec.json.decode(body, type=Fields)
    except msgspec.ValidationError:
        raise BadRequest("the body has to be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def _read(
    fields: Mapping[str, msgspec.Raw], name: str, kind: type[T], words: str
) -> T | None:
    """Return a field if it is there and not null; raise BadRequest if it is no *kind*.

    *words* say what it has to be.
    """
    raw = fields.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest(
            f"{name} has to be {words}, not {_short(raw)}", param=name
        ) from None


def _short(raw: msgspec.Raw) -> str:
    text = bytes(raw).decode(errors="replace")
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def _flag(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    return _read(fields, name, bool, "true or false") or False


def _most_tokens(api: Api, fields: Fields) -> int | None:
    for name in _MOST_TOKENS[api]:
        most = _read(fields, name, int, "a whole number")
        if most is not None:
            # Engines have meanings of their own for what is below.
            return most if most > 0 else None
    return None


def _choices(api: Api, fields: Fields) -> int:
    if api not in (Api.CHAT, Api.COMPLETIONS):
        return 1
    choices = _read(fields, "n", int, "a whole number")
    if choices is not None and choices < 1:
        raise BadRequest(f"n has to be at least 1, not {choices}", param="n")
    return choices or 1


# ---- the conversation ----------------------------------------------------------------


def _items(api: Api, fields: Fields) -> Sequence[object]:
    """Return the messages or items of a call; none of a completion.

    They are decoded where the lineage needs that, else raw.
    """
    if api is Api.COMPLETIONS:
        return ()
    if api is Api.RESPONSES:
        return _input(fields)
    kind: type[list[object]] | type[list[msgspec.Raw]] = list[msgspec.Raw]
    if api is Api.MESSAGES:
        kind = list[object]
    items = _read(fields, "messages", kind, "a list of messages")
    if items is None:
        raise BadRequest("the request has no messages", param="messages")
    return items


def _input(fields: Fields) -> Sequence[msgspec.Raw]:
    raw = fields.get("input")
    if raw is None or bytes(raw) == b"null":
        if {"previous_response_id", "prompt", "conversation"} & fields.keys():
            return ()
        raise BadRequest("the request has no input", param="input")
    if bytes(raw)[:1] == b"[":
        return _read(fields, "input", list[msgspec.Raw], "a list of items") or ()
    text = _read(fields, "input", str, "a text or a list of items")
    return (msgspec.Raw(msgspec.json.encode({"role": "user", "content": text})),)


def _path(
    api: Api, fields: Fields, items: Sequence[object], marked: bool
) -> tuple[int, Lineage]:
    """Return how many prompts there are, and the lineage of the first."""
    if api is Api.COMPLETIONS:
        return _prompts(fields)
    # Clients of OpenAI's APIs spell a message alike every time, unless they mark it.
    if api is not Api.MESSAGES and not marked:
        spelled = [item for item in items if isinstance(item, msgspec.Raw)]
        return 1, lineage(plain_head(fields), spelled)
    try:
        decoded: list[object] = [
            msgspec.json.decode(item) if isinstance(item, msgspec.Raw) else item
            for item in items
        ]
        return 1, lineage(canonical_head(fields), canonical_items(decoded))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the messages are not valid JSON: {error}") from None


def _prompts(fields: Fields) -> tuple[int, Lineage]:
    """Return number and lineage of what a completion is to continue."""
    prompt = _read(fields, "prompt", object, "a text or a list of token ids")
    if prompt is None:
        raise BadRequest("the request has no prompt", param="prompt")
    count = 1
    if is_list(prompt) and prompt and not isinstance(prompt[0], int):
        count, prompt = len(prompt), prompt[0]  # several prompts
    head = bytes(fields["model"])
    if isinstance(prompt, str):
        return count, lineage(head, text_blocks(prompt))
    try:
        return count, lineage(
            head, token_blocks(msgspec.convert(prompt, type=list[int]))
        )
    except (msgspec.ValidationError, OverflowError):
        raise BadRequest(
            "prompt has to be a text, a list of token ids, or a list of such",
            param="prompt",
        ) from None
