"""The seam between the gateway and a model server that is spoken to in its own API.

A backend is given token ids; an upstream is given a model call as a client has worded
it, and answers in the same API, byte by byte. What both have in common is slots: places
on an accelerator that the scheduler hands out, and whose KV state may be moved.

An upstream that can't move state has as many slots as calls may run at once; their
numbers mean nothing to it.
"""

from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..state_store import KVState
from .backend import Capabilities
from .http import Answer, Headers, Outgoing


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A POST that a model answers: path without query, query, headers, JSON body.

    ``path`` is one of ``/v1/chat/completions``, ``/v1/completions``, ``/v1/responses``,
    ``/v1/messages``. ``streams`` is what the body asks for.
    """

    path: str
    query: str
    headers: Headers
    body: bytes
    streams: bool

    def outgoing(self, *, body: bytes | None = None) -> Outgoing:
        """Return it as a request, with another *body* if one is given."""
        return Outgoing(
            method="POST",
            target=f"{self.path}?{self.query}" if self.query else self.path,
            headers=self.headers,
            body=self.body if body is None else body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What an engine said of a prompt: its length, what it reused, time it took."""

    prompt_tokens: int
    reused_tokens: int
    busy_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An exported state, and the token ids that it turned out to be of."""

    state: KVState
    token_ids: "array[int]"


class Relayed(Protocol):
    """The answer to a model call, on its way; iterate once, close in any case.

    ``status`` and ``headers`` are the server's. Where the body is a stream of events
    its first piece comes when the prompt has been computed: from then on ``computed``
    says what that took, or None where the engine does not tell (a usage at the end of
    the answer may). Iterating raises EngineLost where the server breaks off.
    """

    status: int
    headers: Headers

    @property
    def computed(self) -> Computed | None:
        """What the engine said of the prompt, once it has."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the body, in pieces as they come."""
        ...

    async def aclose(self) -> None:
        """End it; if it was not over, the server has stopped working when this returns.

        The slot's content is then undefined until ``release`` or ``import_kv``.
        """
        ...


@runtime_checkable
class Upstream(Protocol):
    """A model server that calls are relayed to. Slots are those of ``KVSlots``."""

    @property
    def native_paths(self) -> frozenset[str]:
        """The paths of model calls that it answers itself; others are translated."""
        ...

    @property
    def streams_only(self) -> bool:
        """Whether calls have to ask for a stream, as cancelling works only then."""
        ...

    async def render(self, call: ModelCall) -> "array[int] | None":
        """Return the exact token ids of the prompt; None where nobody can tell.

        Raises CallRefused where the server would not take the call.
        """
        ...

    async def relay(self, slot: int, call: ModelCall) -> Relayed:
        """Send *call*, to be computed on *slot*; return when an answer's head is there.

        A refusal of the server's is an answer like any other. Raises EngineLost.
        """
        ...

    async def export_held(
        self, slot: int, key: str, known: "array[int]", tokens: int, *, first_token: int
    ) -> Held:
        """Export as ``export_kv`` does *tokens* tokens of which *known* are the first.

        The ids of the others are what the slot says. Raises as ``export_kv`` does.
        """
        ...

    async def pass_on(self, outgoing: Outgoing) -> Answer:
        """Send any other request, as it is. Raises EngineLost."""
        ...


class KVSlots(Protocol):
    """Numbered places on an accelerator, whose KV state can be moved.

    See ``Backend`` for what each of these promises.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; constant over its life."""
        ...

    async def export_kv(
        self, slot: int, key: str, token_ids: Sequence[int], *, first_token: int = 0
    ) -> KVState:
        """Copy out the state of *slot*."""
        ...

    async def import_kv(
        self, slot: int, state: KVState, token_ids: Sequence[int]
    ) -> None:
        """Load *state* into *slot*."""
        ...

    async def release(self, slot: int) -> None:
        """Empty *slot*."""
        ...

    async def aclose(self) -> None:
        """Stop it, if it is ours, and remove everything that it left behind."""
        ...
