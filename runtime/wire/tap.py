"""Watches an answer pass by: when it begins, what it asks for, how it ends.

Clients close a stream as soon as they have what they want, so nothing here waits for
its end. A tap never changes an answer and never fails one: what it does not understand
it has not seen.
"""

from collections.abc import Callable

import msgspec

from .answer import Call, Seen, Timings, Usage
from .answer_chat import read_chat
from .answer_messages import read_message, read_messages
from .answer_responses import read_response, read_responses, tells_responses
from .api import Api
from .errors import EventTooLong
from .events import SSEReader, event_data, event_name
from .json_values import is_object

_LONGEST_BODY_BYTES = 16 << 20

Read = Callable[[Seen, dict[str, object]], None]

_EVENTS: dict[Api, Read] = {
    Api.CHAT: read_chat,
    Api.COMPLETIONS: read_chat,
    Api.RESPONSES: read_responses,
    Api.MESSAGES: read_messages,
}
_WHOLE: dict[Api, Read] = {
    Api.CHAT: read_chat,
    Api.COMPLETIONS: read_chat,
    Api.RESPONSES: read_response,
    Api.MESSAGES: read_message,
}
_TOOL_FINISHES = ("tool_calls", "function_call", "tool_use")

_decode = msgspec.json.Decoder().decode


class Tap:
    """Feed it an answer's body as it passes, ``end()`` where that is over.

    *streams* says whether the body is a stream of events, *choices* how many answers it
    has side by side. A whole body is understood at its end only, and not if it has more
    than 16 MiB; nor is what follows an event of that size.
    """

    __slots__ = ("_api", "_blind", "_body", "_reader", "_seen", "_streams")

    def __init__(self, api: Api, *, streams: bool, choices: int = 1) -> None:
        self._api = api
        self._streams = streams
        self._seen = Seen(choices=choices)
        self._reader = SSEReader(_LONGEST_BODY_BYTES)
        self._body = bytearray()
        self._blind = False

    def feed(self, piece: bytes) -> None:
        """Watch *piece* pass."""
        if self._blind or not piece:
            return
        if not self._streams:
            self._hold(piece)
            return
        try:
            blocks = self._reader.feed(piece)
        except EventTooLong:
            self._blind = True
            return
        for block in blocks:
            self._event(block)

    def end(self) -> None:
        """Watch the body end, properly: nothing more will come."""
        if self._blind:
            return
        if self._streams:
            # Some servers forget the empty line after their last event.
            self._event(self._reader.rest)
        else:
            value = _object(bytes(self._body))
            if value is not None:
                _WHOLE[self._api](self._seen, value)
                self._seen.ended = True
        self._blind = True

    # ---- what has been seen ----------------------------------------------------------

    @property
    def answered(self) -> bool:
        """Whether anything of an answer has passed; an error is none."""
        return self._seen.answered

    @property
    def first_token(self) -> bool:
        """Whether something that the model has sampled has passed."""
        return self._seen.pieces > 0

    @property
    def pieces(self) -> int:
        """How many pieces of content have passed: at least as many tokens have."""
        return self._seen.pieces

    @property
    def finish(self) -> str | None:
        """Why the model stopped, in the API's word; of several, the one for tools."""
        reasons = [reason for _, reason in sorted(self._seen.finished.items())]
        tools = [reason for reason in reasons if reason in _TOOL_FINISHES]
        return next(iter(tools + reasons), None)

    @property
    def complete(self) -> bool:
        """Whether the model has said all that it will, and nothing failed."""
        seen = self._seen
        finished = len(seen.finished) >= seen.choices
        return (seen.ended or finished) and not seen.failed

    @property
    def failed(self) -> bool:
        """Whether the server has put an error in the place of an answer."""
        return self._seen.failed

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls asked for so far; clients run them when it is complete."""
        return tuple(self._seen.calls.values())

    @property
    def usage(self) -> Usage | None:
        """The newest usage that the server has told."""
        return self._seen.usage

    @property
    def timings(self) -> Timings | None:
        """The newest timings, of servers that tell them."""
        return self._seen.timings

    @property
    def response_id(self) -> str | None:
        """The id that the server has given the answer."""
        return self._seen.response_id

    # ---- watching --------------------------------------------------------------------

    def _hold(self, piece: bytes) -> None:
        self._seen.answered = True
        self._body += piece
        if len(self._body) > _LONGEST_BODY_BYTES:
            self._body.clear()
            self._blind = True

    def _event(self, block: bytes) -> None:
        if self._api is Api.RESPONSES:
            name = event_name(block).decode(errors="replace")
            if not tells_responses(name):
                self._seen.answered = True
                return
        data = event_data(block)
        if data == b"[DONE]":
            self._seen.ended = True
        elif data:
            self._data(data)
        else:
            # An old llama.cpp's errors are no events: they have a field of their own.
            self._seen.failed |= block.startswith(b"error:")

    def _data(self, data: bytes) -> None:
        value = _object(data)
        if value is not None:
            _EVENTS[self._api](self._seen, value)
            self._seen.answered |= not self._seen.failed


def _object(data: bytes) -> dict[str, object] | None:
    try:
        value = _decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if is_object(value) else None
