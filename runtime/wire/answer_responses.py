"""Answers of the responses API, as they pass by.

Its first and last events repeat instructions, tools and output, so an event is only
decoded where its name says that something is to be learned from it.
"""

from .answer import Seen, Usage, text, whole
from .json_values import is_list, is_object

# Calls that the client has to answer; the server itself runs those of other types.
_CALLS = frozenset(
    (
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "computer_call",
        "mcp_approval_request",
    )
)
_ENDED = ("response.completed", "response.incomplete", "response.failed")
_PIECES = frozenset(
    (
        "response.output_text.delta",
        "response.reasoning_text.delta",
        "response.refusal.delta",
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
    )
)
_TOLD = frozenset(
    (
        *("response.created", "response.output_item.added"),
        *("response.output_item.done", "error", *_ENDED, *_PIECES),
    )
)


def tells_responses(name: str) -> bool:
    """Return whether an event of this name has to be decoded; one without a name has.

    >>> tells_responses("response.output_text.done")
    False
    """
    return not name or name in _TOLD


def read_responses(seen: Seen, event: dict[str, object]) -> None:
    """Note what an event of a stream says."""
    kind = event.get("type")
    response = event.get("response")
    if kind in _PIECES:
        seen.pieces += bool(event.get("delta"))
    elif kind in ("response.output_item.added", "response.output_item.done"):
        _item(seen, event.get("output_index"), event.get("item"))
    elif kind == "error":
        seen.failed = True
    elif kind == "response.created" and is_object(response):
        seen.response_id = text(response.get("id")) or None
    elif kind in _ENDED and is_object(response):
        read_response(seen, response)
        seen.timings_seen(event.get("timings"))


def read_response(seen: Seen, response: dict[str, object]) -> None:
    """Note what a whole response says: the last event has it, or a body is it."""
    seen.response_id = text(response.get("id")) or seen.response_id
    status = text(response.get("status"))
    details = response.get("incomplete_details")
    reason = text(details.get("reason")) if is_object(details) else ""
    if status == "failed" or response.get("error") is not None:
        seen.failed = True
    if status or reason:
        seen.finished[0] = reason or status
    output = response.get("output")
    for index, item in enumerate(output) if is_list(output) else ():
        _item(seen, index, item)
    if output and not seen.pieces:
        seen.pieces = 1
    _usage(seen, response.get("usage"))
    seen.timings_seen(response.get("timings"))
    seen.ended = True


def _item(seen: Seen, index: object, item: object) -> None:
    if not is_object(item):
        return
    kind = text(item.get("type"))
    if kind in _CALLS:
        id = text(item.get("call_id")) or text(item.get("id"))
        seen.call_seen(f"{whole(index)}", id, text(item.get("name")) or kind)


def _usage(seen: Seen, usage: object) -> None:
    if not is_object(usage):
        return
    details = usage.get("input_tokens_details")
    seen.usage = Usage(
        prompt_tokens=whole(usage.get("input_tokens")),
        cached_tokens=whole(details.get("cached_tokens")) if is_object(details) else 0,
        output_tokens=whole(usage.get("output_tokens")),
    )
