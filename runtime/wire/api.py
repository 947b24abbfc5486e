"""The four ways in which clients word a model call."""

from enum import Enum, unique


@unique
class Api(Enum):
    """An API of model calls; its value is the path that servers have it under."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


_BY_PATH = {api.value: api for api in Api} | {
    api.value.removeprefix("/v1"): api for api in Api
}


def model_call_api(method: str, path: str) -> Api | None:
    """Return which API a request belongs to; None where it calls no model.

    >>> model_call_api("POST", "/v1/messages")
    <Api.MESSAGES: '/v1/messages'>
    >>> model_call_api("POST", "/v1/messages/count_tokens")
    """
    return _BY_PATH.get(path) if method == "POST" else None
