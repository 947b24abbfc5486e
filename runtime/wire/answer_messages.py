"""Answers of the messages API, as they pass by.

Usage comes in two parts: the prompt's at the start, the output's, which is cumulative,
at the end; some servers repeat the prompt's there, corrected.
"""

from .answer import Seen, Usage, text, whole
from .json_values import is_list, is_object

_SPOKEN = ("text", "thinking", "partial_json")
_INPUTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def read_messages(seen: Seen, event: dict[str, object]) -> None:
    """Note what an event of a stream says."""
    kind = event.get("type")
    delta = event.get("delta")
    if kind == "content_block_delta":
        if is_object(delta):
            seen.pieces += any([delta.get(name) for name in _SPOKEN])
    elif kind == "content_block_start":
        _block(seen, event.get("index"), event.get("content_block"))
    elif kind == "message_start":
        message = event.get("message")
        if is_object(message):
            seen.response_id = text(message.get("id")) or None
            _usage(seen, message.get("usage"))
    elif kind == "message_delta":
        if is_object(delta):
            _stopped(seen, delta)
        _usage(seen, event.get("usage"))
    elif kind == "message_stop":
        seen.ended = True
    elif kind == "error":
        seen.failed = True
    seen.timings_seen(event.get("timings"))


def read_message(seen: Seen, message: dict[str, object]) -> None:
    """Note what a whole answer says."""
    if message.get("type") == "error":
        seen.failed = True
        return
    seen.response_id = text(message.get("id")) or None
    content = message.get("content")
    for index, block in enumerate(content) if is_list(content) else ():
        _block(seen, index, block)
    _stopped(seen, message)
    _usage(seen, message.get("usage"))
    seen.timings_seen(message.get("timings"))


def _block(seen: Seen, index: object, block: object) -> None:
    if not is_object(block):
        return
    if block.get("type") == "tool_use":  # server_tool_use is the server's to run
        seen.call_seen(
            f"{whole(index)}", text(block.get("id")), text(block.get("name"))
        )
        seen.pieces += 1
    else:
        seen.pieces += any([block.get(name) for name in _SPOKEN])


def _stopped(seen: Seen, told: dict[str, object]) -> None:
    reason = text(told.get("stop_reason"))
    if reason:
        seen.finished[0] = reason


def _usage(seen: Seen, usage: object) -> None:
    if not is_object(usage):
        return
    before = seen.usage or Usage(prompt_tokens=0, cached_tokens=0, output_tokens=0)
    prompt_tokens = sum([whole(usage.get(name)) for name in _INPUTS])
    cached_tokens = whole(usage.get("cache_read_input_tokens"))
    seen.usage = Usage(
        prompt_tokens=prompt_tokens or before.prompt_tokens,
        cached_tokens=cached_tokens if prompt_tokens else before.cached_tokens,
        output_tokens=whole(usage.get("output_tokens")) or before.output_tokens,
    )
