"""Answers of chat completions and completions, as they pass by.

A stream's chunks and a whole answer have one shape but for the name of the message:
``delta`` or ``message``; a completion has ``text`` in its place.
"""

from .answer import Seen, Usage, text, whole
from .json_values import is_list, is_object

_CONTENTS = ("content", "reasoning_content", "reasoning", "refusal")


def read_chat(seen: Seen, chunk: dict[str, object]) -> None:
    """Note what a chunk, or a whole answer, says."""
    if chunk.get("error") is not None:
        seen.failed = True
        return
    if seen.response_id is None:
        seen.response_id = text(chunk.get("id")) or None
    choices = chunk.get("choices")
    if is_list(choices):
        for choice in choices:
            if is_object(choice):
                _choice(seen, choice)
    _usage(seen, chunk.get("usage"))
    seen.timings_seen(chunk.get("timings"))


def _choice(seen: Seen, choice: dict[str, object]) -> None:
    index = whole(choice.get("index"))
    said = choice.get("delta") or choice.get("message")
    spoken = bool(choice.get("text"))
    if is_object(said):
        spoken = any([said.get(name) for name in _CONTENTS])
        if said.get("tool_calls") or said.get("function_call"):
            _calls(seen, index, said)
            spoken = True
    seen.pieces += spoken
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason:
        seen.finished[index] = reason


def _calls(seen: Seen, index: int, said: dict[str, object]) -> None:
    legacy = said.get("function_call")
    if is_object(legacy):
        name = text(legacy.get("name"))
        seen.call_seen(f"{index}/function", name, name)
    calls = said.get("tool_calls")
    for place, call in enumerate(calls) if is_list(calls) else ():
        if not is_object(call):
            continue
        called = call.get("function") or call.get("custom")
        seen.call_seen(
            f"{index}/{whole(call.get('index', place))}",
            text(call.get("id")),
            text(called.get("name")) if is_object(called) else "",
        )


def _usage(seen: Seen, usage: object) -> None:
    if not is_object(usage):
        return
    details = usage.get("prompt_tokens_details")
    seen.usage = Usage(
        prompt_tokens=whole(usage.get("prompt_tokens")),
        cached_tokens=whole(details.get("cached_tokens")) if is_object(details) else 0,
        output_tokens=whole(usage.get("completion_tokens")),
    )
