"""The seam between the runtime and a model server.

A backend has numbered *slots*, each one sequence's place on the accelerator. The
scheduler owns the numbers; a backend does what it is told on a slot and never queues,
evicts or chooses by itself. A turn is two units of work: *prefill* reads the prompt and
samples the first token, *decode* samples the rest.

At most one call per slot is in progress at any time; the runtime sees to that.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Protocol, runtime_checkable

from ..state_store import KVState


@unique
class FinishReason(Enum):
    """Why the model stopped."""

    STOP = "stop"  # it said so itself, or a stop string came up
    LENGTH = "length"  # max_tokens, or the end of the context


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do and how much it holds.

    ``kv_tokens`` is the capacity of all slots together, ``context_tokens`` of one
    sequence, ``bytes_per_token`` the size of one token's KV rows (0 where unknown).
    ``identity`` names what its costs depend on: engine, model, threads, device. With
    ``exports_rows`` an export can leave out the leading rows that the store has. One
    that ``exports_slices`` spends nothing on what it leaves out, so copies may be cut.
    """

    exports_kv: bool
    slots: int
    kv_tokens: int
    context_tokens: int
    bytes_per_token: int
    identity: str
    exports_rows: bool = False
    exports_slices: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy.

    ``ignore_stop`` makes the output exactly ``max_tokens`` long, as replay needs.
    """

    temperature: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn's work: the whole prompt as token ids, and what to make of it.

    ``prompt`` always is the complete history; the backend reuses what its slot holds
    of it.
    """

    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some freshly sampled tokens, their text, and why the model stopped, if it did."""

    token_ids: tuple[int, ...]
    text: str
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """What a prefill did.

    ``computed_tokens + reused_tokens`` is the prompt's length. ``first`` holds the
    first sampled token; None where the engine keeps it for the decode.
    ``busy_s`` is accelerator time.
    """

    computed_tokens: int
    reused_tokens: int
    busy_s: float
    first: Chunk | None


@runtime_checkable
class Backend(Protocol):
    """A model server, or a simulation of one.

    Every call may be cancelled; afterwards the slot's content is undefined until
    ``release`` or ``import_kv``, and the engine works on nothing for it.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do; constant over its life."""
        ...

    async def prefill(self, slot: int, request: Request) -> Prefilled:
        """Compute the KV state of the prompt on *slot* and sample the first token.

        Raises ContextTooLong or EngineLost.
        """
        ...

    def decode(
        self, slot: int, request: Request, prefilled: Prefilled
    ) -> AsyncGenerator[Chunk, None]:
        """Sample what follows ``prefilled.first``, at most ``max_tokens`` in all.

        The last chunk carries ``finish``. Afterwards the slot holds the prompt and all
        but the last sampled token. Raises EngineLost.
        """
        ...

    async def export_kv(
        self, slot: int, key: str, token_ids: Sequence[int], *, first_token: int = 0
    ) -> KVState:
        """Copy out the state of *slot*, which must be that of exactly *token_ids*.

        The slot keeps its state. A backend that ``exports_rows`` takes any leading part
        of what the slot holds, and leaves out the rows before *first_token*; for others
        that is 0. Raises ExportFailed or EngineLost.
        """
        ...

    async def import_kv(
        self, slot: int, state: KVState, token_ids: Sequence[int]
    ) -> None:
        """Load *state* into *slot*, if it is this engine's and of *token_ids*.

        Raises ImportRefused (the slot is then empty) or EngineLost.
        """
        ...

    async def release(self, slot: int) -> None:
        """Empty *slot*; nothing of its content is reused afterwards."""
        ...

    async def aclose(self) -> None:
        """Stop the engine and remove everything that it left behind."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a chat: role (system, user, assistant, tool) and text."""

    role: str
    content: str


@runtime_checkable
class Tokenizer(Protocol):
    """What a backend offers besides when text, not token ids, goes in."""

    async def encode(self, text: str) -> list[int]:
        """Return the token ids of *text*, without any special tokens added."""
        ...

    async def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt for *messages* in the model's own chat template."""
        ...
