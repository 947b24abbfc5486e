"""Errors in the words of the client's API."""

import json
import math

import pytest

from kvalet.runtime.wire.api import Api
from kvalet.runtime.wire.events import event_data, event_name
from kvalet.runtime.wire.shapes import error_answer, error_type, stream_error


def test_openais_shape() -> None:
    """Chat, completions, responses and unknown paths get OpenAI's error object."""
    for api in (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, None):
        status, headers, body = error_answer(
            api,
            status=400,
            message="no",
            code="context_length_exceeded",
            param="messages",
            request_id="r1",
        )
        assert status == 400
        assert dict(headers)[b"x-request-id"] == b"r1"
        assert json.loads(body) == {
            "error": {
                "message": "no",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
        }


def test_anthropics_shape() -> None:
    """Messages get Anthropic's error object."""
    _, headers, body = error_answer(
        Api.MESSAGES, status=429, message="later", request_id="r2"
    )
    assert dict(headers)[b"request-id"] == b"r2"
    assert json.loads(body) == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "later"},
        "request_id": "r2",
    }


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, b"1"), (0, b"0"), (-3, b"0"), (7, b"7"), (1e9, b"120"), (math.nan, b"120")],
)
def test_retry_after_is_one_that_clients_obey(seconds: float, said: bytes) -> None:
    """It is in whole seconds, never less than was meant, and never above 120."""
    _, headers, _ = error_answer(
        Api.CHAT, status=503, message="full", retry_after_s=seconds
    )
    assert dict(headers)[b"retry-after"] == said


def test_every_status_has_a_type() -> None:
    """A status without a word of its own gets the one of its hundred."""
    assert error_type(404) == "not_found_error"
    assert error_type(418) == error_type(400)
    assert error_type(599) == error_type(500)


def test_a_broken_stream_ends_in_its_apis_event() -> None:
    """Each API's clients find the error in the event that they look for."""
    chat = stream_error(Api.CHAT, "gone", status=503)
    assert event_name(chat) == b""
    assert json.loads(event_data(chat))["error"]["message"] == "gone"
    responses = json.loads(event_data(stream_error(Api.RESPONSES, "gone", "lost")))
    assert (responses["type"], responses["code"]) == ("error", "lost")
    messages = stream_error(Api.MESSAGES, "gone", status=503)
    assert event_name(messages) == b"error"
    assert json.loads(event_data(messages))["error"]["type"] == "overloaded_error"
