"""The embedded face: a session, its turns, its tools.

    async with Runtime(backend) as runtime, runtime.session() as session:
        reply = await session.turn("List the files.")
        async with session.tool("Bash"):
            listing = await run("ls")
        reply = await session.turn(listing)

A session keeps the token ids of its conversation and never tokenises them again, so
what is reused, copied and restored is exactly what the model has seen.
"""

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from ..backends import Sampling
from ..scheduler import CallId, SessionId
from .dispatch import Dispatch
from .errors import SessionBusy, SessionEnded
from .tool_class import ToolClass, tool_class
from .tools import ToolCall
from .turn import Append, ChatMessage, Conversation, Replace, Turn


class Session:
    """One lane of one agent's conversation. Made by ``Runtime.session``."""

    __slots__ = ("_calls", "_conversation", "_dispatch")

    def __init__(self, dispatch: Dispatch, id: SessionId) -> None:
        self._dispatch = dispatch
        self._conversation = Conversation(dispatch, id)
        self._calls = 0
        dispatch.enter(id, self._conversation)

    @property
    def id(self) -> str:
        """The session's id."""
        return self._conversation.id

    @property
    def context_tokens(self) -> int:
        """Length of the conversation so far."""
        return self._conversation.said_tokens

    def turn(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        keep_tokens: int | None = None,
    ) -> Turn:
        """Add *prompt* (text or token ids) to the conversation and have it answered.

        Only the first *keep_tokens* of the conversation are kept, if given: this is how
        a history is compacted. What is kept is reused.

        Await it for the whole ``Reply``, or enter it with ``async with`` and iterate
        over its chunks. Raises TurnRefused where it can never fit, SessionBusy while
        another turn of the session runs, SessionEnded, or what the backend raises.
        """
        said = Append(prompt=prompt, keep_tokens=keep_tokens)
        return Turn(self._conversation, said, max_tokens, sampling or Sampling())

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
    ) -> Turn:
        """Let the model answer to *messages*, which replace the conversation.

        What they share with the conversation so far is reused. Raises as ``turn`` does.
        """
        said = Replace(messages=messages)
        return Turn(self._conversation, said, max_tokens, sampling or Sampling())

    def tool(
        self,
        name: str,
        *,
        command: str | None = None,
        class_name: ToolClass | None = None,
        expected_s: float | None = None,
    ) -> ToolCall:
        """Return a tool call to enter with ``async with``, or to ``run`` an awaitable.

        Calls that overlap are one wait of the session. The call's class follows from
        its name and, for shells, from the *command*, which is not kept; or it is given.
        *expected_s* is how long it will take, for a caller that knows. Raises
        SessionEnded, or WrongInput where that is negative or not finite.
        """
        if self._conversation.ended:
            raise SessionEnded(f"session {self.id!r} is closed")
        self._calls += 1
        call = CallId(f"{self.id}/{self._calls}")
        kind = class_name or tool_class(name, command)
        return ToolCall(
            self._dispatch, self._conversation.id, call, name, kind, expected_s
        )

    async def aclose(self) -> None:
        """End the session and let its state go, wherever it is."""
        conversation = self._conversation
        if conversation.ended:
            return
        if conversation.busy:
            raise SessionBusy(f"session {self.id!r} has a turn in progress")
        conversation.ended = True
        self._dispatch.leave(conversation.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(SessionEnded):  # the runtime may have gone first
            await self.aclose()
