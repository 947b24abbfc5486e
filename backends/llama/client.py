"""What llama-server says over HTTP, as typed values.

Every request opens its own connection: the server closes a kept one after five seconds
or a hundred requests, and a request that meets the closing is lost. Every request names
its slot, since the server would choose one itself and evict what is there.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import httpx
import msgspec

from ..backend import Message, Sampling
from ..errors import BackendError, EngineLost

_EVENT: Final = "data: "
_T = TypeVar("_T")


class Refusal(msgspec.Struct, frozen=True):
    """Why the server refused a request."""

    message: str = ""
    type: str = ""


class Refused(BackendError):
    """The server is well and refused the request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"the engine refused: {refusal.message}")
        self.refusal = refusal


class Timings(msgspec.Struct, frozen=True):
    """How many tokens came from the slot, how many were computed, and how long."""

    cache_n: int
    prompt_n: int
    prompt_ms: float


class Event(msgspec.Struct, frozen=True):
    """One event of a completion; the last one has ``stop`` and ``timings``.

    ``tokens_predicted`` counts what was sampled so far. A token that ends inside a
    UTF-8 character gets no event of its own, so ids can be missing from the stream.
    """

    content: str = ""
    tokens: tuple[int, ...] = ()
    tokens_predicted: int = 0
    stop: bool = False
    stop_type: str = ""
    timings: Timings | None = None
    prompt_progress: Any = None
    error: Refusal | None = None


class Saved(msgspec.Struct, frozen=True):
    """What a slot save wrote."""

    n_saved: int
    n_written: int


class Restored(msgspec.Struct, frozen=True):
    """What a slot restore read."""

    n_restored: int
    n_read: int


class _Failure(msgspec.Struct, frozen=True):
    error: Refusal = Refusal()


class _Sampled(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


class _Text(msgspec.Struct, frozen=True):
    content: str


class _Prompt(msgspec.Struct, frozen=True):
    prompt: str


class LlamaClient:
    """One server; *explain* says in a sentence why it stopped answering."""

    def __init__(
        self,
        url: str,
        *,
        explain: Callable[[], Awaitable[str]],
        silence_timeout_s: float,
    ) -> None:
        self._explain = explain
        self._http = httpx.AsyncClient(
            base_url=url,
            # The engine is on this machine; a proxy from the environment is not.
            trust_env=False,
            verify=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            timeout=httpx.Timeout(silence_timeout_s, connect=10.0),
        )

    async def aclose(self) -> None:
        """Close what is still open."""
        await self._http.aclose()

    async def complete(
        self, slot: int, prompt: Sequence[int], max_tokens: int, sampling: Sampling
    ) -> AsyncGenerator[Event, None]:
        """Stream a completion; raise Refused or EngineLost.

        Streaming and progress events are what makes the server notice, after one batch
        at the latest, that nobody listens any more.
        """
        body = {
            **_completion(slot, prompt, max_tokens, sampling),
            "stream": True,
            "return_progress": True,
        }
        stopped = False
        async with (
            self._explained(),
            self._http.stream("POST", "/completion", json=body) as response,
        ):
            if not response.is_success:
                raise _refusal(await response.aread())
            async for line in response.aiter_lines():
                event = _event(line)
                if event is not None and event.prompt_progress is None:
                    stopped = event.stop
                    yield event
        if not stopped:
            raise EngineLost(await self._explain())

    async def sample_once(
        self, slot: int, prompt: Sequence[int], sampling: Sampling
    ) -> int:
        """Sample the one token after *prompt*, with its id in any case."""
        body = _completion(slot, prompt, 0, sampling)
        return (await self._post("/completion", body, _Sampled)).tokens[0]

    async def save(self, slot: int, filename: str) -> Saved:
        """Write the slot's state to *filename* in the server's folder."""
        path = f"/slots/{slot}?action=save"
        return await self._post(path, {"filename": filename}, Saved)

    async def restore(self, slot: int, filename: str) -> Restored:
        """Load the slot's state from *filename*; a failure leaves the slot empty."""
        path = f"/slots/{slot}?action=restore"
        return await self._post(path, {"filename": filename}, Restored)

    async def erase(self, slot: int) -> None:
        """Empty the slot, as soon as it works on nothing."""
        await self._post(f"/slots/{slot}?action=erase", {}, msgspec.Raw)

    async def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the ids of *text*, with special tokens added and read or not."""
        body = {"content": text, "add_special": special, "parse_special": special}
        return (await self._post("/tokenize", body, _Tokens)).tokens

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of *token_ids*."""
        body = {"tokens": list(token_ids)}
        return (await self._post("/detokenize", body, _Text)).content

    async def apply_template(self, messages: Sequence[Message]) -> str:
        """Return the text of the prompt for *messages*."""
        listed = [{"role": each.role, "content": each.content} for each in messages]
        body = {"messages": listed}
        return (await self._post("/apply-template", body, _Prompt)).prompt

    async def _post(self, path: str, body: dict[str, Any], answer: type[_T]) -> _T:
        async with self._explained():
            response = await self._http.post(path, json=body)
            if not response.is_success:
                raise _refusal(response.content)
            return msgspec.json.decode(response.content, type=answer)

    @asynccontextmanager
    async def _explained(self) -> AsyncGenerator[None, None]:
        if self._http.is_closed:
            raise EngineLost("the engine was stopped")
        try:
            yield
        except httpx.TransportError as error:
            raise EngineLost(await self._explain()) from error
        except msgspec.DecodeError as error:
            raise EngineLost(f"the engine's answer can't be read: {error}") from error


def _completion(
    slot: int, prompt: Sequence[int], max_tokens: int, sampling: Sampling
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id_slot": slot,
        "prompt": list(prompt),
        "n_predict": max_tokens,
        "cache_prompt": True,
        "return_tokens": True,
        "temperature": sampling.temperature,
        "ignore_eos": sampling.ignore_stop,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.stop and not sampling.ignore_stop:
        body["stop"] = list(sampling.stop)
    return body


def _event(line: str) -> Event | None:
    if not line.startswith(_EVENT):
        return None
    event = msgspec.json.decode(line[len(_EVENT) :], type=Event)
    if event.error is not None:
        raise Refused(event.error)
    return event


def _refusal(content: bytes) -> Refused:
    try:
        return Refused(msgspec.json.decode(content, type=_Failure).error)
    except msgspec.DecodeError:
        return Refused(Refusal(message=content.decode("utf-8", "replace")))
