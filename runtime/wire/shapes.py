"""Refusals and broken streams, in the words of the API that the client speaks.

A client's library turns an error into the exception it promises only if it comes in
its own API's shape, and takes a stream that just ends for a complete answer.
"""

import math

import msgspec

from ...backends.http import Headers
from .api import Api

_RETRY_AFTER_AT_MOST_S = 120  # client libraries do not wait for longer ones at all

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_type(status: int) -> str:
    """Return the word that both families of APIs have for an error of this status.

    >>> error_type(429), error_type(422), error_type(502)
    ('rate_limit_error', 'invalid_request_error', 'api_error')
    """
    return _TYPES.get(status) or _TYPES[400 if status < 500 else 500]


def error_answer(
    api: Api | None,
    *,
    status: int,
    message: str,
    code: str | None = None,
    param: str | None = None,
    retry_after_s: float | None = None,
    request_id: str = "",
) -> tuple[int, Headers, bytes]:
    """Return status, headers and body of an error in the shape of *api*.

    Without an *api* it is OpenAI's. *retry_after_s* is rounded up to whole seconds and
    held to 120.
    """
    headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]
    if request_id:
        spelled = request_id.encode("ascii", "replace")
        headers += [(b"x-request-id", spelled), (b"request-id", spelled)]
    if retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % _whole_seconds(retry_after_s)))
    kind = error_type(status)
    if api is Api.MESSAGES:
        body = _anthropic(kind, message, request_id)
    else:
        body = {"error": _openai(kind, message, code, param)}
    return status, tuple(headers), msgspec.json.encode(body)


def stream_error(
    api: Api, message: str, code: str | None = None, *, status: int = 500
) -> bytes:
    """Return the event that ends a stream which can't be completed.

    *status* is what the answer would have had, were its head not sent already.
    """
    kind = error_type(status)
    if api is Api.MESSAGES:
        return _event(b"error", _anthropic(kind, message, ""))
    error = _openai(kind, message, code, None)
    if api is Api.RESPONSES:
        # The documented event has its fields at the top; libraries that raise look for
        # an "error" in any event.
        flat = {"type": "error", "code": code or kind, "message": message}
        return _event(b"error", {**flat, "param": None, "error": error})
    return _event(b"", {"error": error})


def _whole_seconds(seconds: float) -> int:
    if math.isnan(seconds):
        return _RETRY_AFTER_AT_MOST_S
    return math.ceil(min(max(seconds, 0.0), _RETRY_AFTER_AT_MOST_S))


def _openai(
    kind: str, message: str, code: str | None, param: str | None
) -> dict[str, str | None]:
    return {"message": message, "type": kind, "param": param, "code": code}


def _anthropic(kind: str, message: str, request_id: str) -> dict[str, object]:
    error = {"type": kind, "message": message}
    return {"type": "error", "error": error, "request_id": request_id or None}


def _event(name: bytes, data: object) -> bytes:
    line = b"data: " + msgspec.json.encode(data) + b"\n\n"
    return b"event: " + name + b"\n" + line if name else line
