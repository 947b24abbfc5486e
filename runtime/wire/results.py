"""The tool results that a model call brings back: they end a wait.

Results come in one request, all of them, behind the answer that asked for the calls.
What a user says behind them does not change that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from .api import Api
from .json_values import is_list

_SPOKEN = frozenset(("user", "system", "developer"))
_RESPONSES_RESULTS = frozenset(
    (
        "function_call_output",
        "custom_tool_call_output",
        "local_shell_call_output",
        "computer_call_output",
        "mcp_approval_response",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A tool call that has ended. ``failed`` where the client says so."""

    call_id: str
    failed: bool = False


class _Item(msgspec.Struct):
    role: str | None = None
    type: str | None = None
    tool_call_id: str | None = None
    call_id: str | None = None
    approval_request_id: str | None = None
    id: str | None = None
    name: str | None = None
    content: object = None


class _Block(msgspec.Struct):
    type: str | None = None
    tool_use_id: str | None = None
    is_error: bool | None = None


def closing_results(
    api: Api, items: Sequence[object]
) -> tuple[tuple[Result, ...], bool]:
    """Return the results behind the last answer in *items*, in their order.

    And whether a user has spoken behind them. Items are decoded or raw. In Anthropic's
    API results are part of a user's message; text beside them is the client's, mostly,
    and does not count.
    """
    results: list[Result] = []
    spoken = False
    for raw in reversed(items):
        item = _item(raw)
        if item is None:
            break
        if api is Api.MESSAGES and item.role == "user":
            found = _blocks(item.content)
            results[:0] = found
            spoken |= not found and not results
            continue
        call = _ended(item)
        if call is not None:
            results.insert(0, Result(call_id=call))
        elif item.role in _SPOKEN and not results:
            spoken |= item.role == "user"
        else:
            break
    return tuple(results), spoken


def _item(item: object) -> _Item | None:
    try:
        if isinstance(item, msgspec.Raw):
            return msgspec.json.decode(item, type=_Item)
        return msgspec.convert(item, type=_Item)
    except (msgspec.DecodeError, RecursionError):
        return None  # the server will say what is wrong with it


def _ended(item: _Item) -> str | None:
    """Return the id of the call that an item of OpenAI's APIs is the result of."""
    if item.role == "tool":
        return item.tool_call_id or ""
    if item.role == "function":  # before calls had ids
        return item.name or ""
    if item.type in _RESPONSES_RESULTS:
        return item.call_id or item.approval_request_id or item.id or ""
    return None


def _blocks(content: object) -> list[Result]:
    """Return the results in the content of one of Anthropic's messages."""
    if not is_list(content):
        return []
    try:
        blocks = msgspec.convert(content, type=list[_Block])
    except msgspec.ValidationError:
        return []
    return [
        Result(call_id=block.tool_use_id or "", failed=bool(block.is_error))
        for block in blocks
        if block.type == "tool_result"
    ]
