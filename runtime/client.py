"""The embedded face: a session, its turns, its tools.

    async with Runtime(backend) as runtime, runtime.session() as session:
        reply = await session.turn("List the files.")
        async with session.tool("Bash"):
            listing = await run("ls")
        reply = await session.turn(listing)

A subagent that has to know what its parent knows is a fork of it:

    async with session.tool("Task"), session.fork() as subagent:
        report = await subagent.turn("Which of them are tests?")
"""

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from ..backends import Sampling
from ..scheduler import CallId
from .conversation import Append, ChatMessage, Conversation, Replace
from .errors import SessionEnded
from .tool_class import ToolClass, tool_class
from .tools import ToolCall
from .turn import Turn


class Session:
    """One lane of one agent's conversation. Made by ``Runtime.session`` or ``fork``.

    Two turns of one session may be in flight. The conversation follows the one that
    began first; the other one is answered beside it, to the conversation as it was
    before the first began, and leaves nothing behind but its answer. To go on from
    both, ``fork`` before.
    """

    __slots__ = ("_calls", "_conversation")

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._calls = 0

    @property
    def id(self) -> str:
        """The session's id."""
        return self._conversation.id

    @property
    def context_tokens(self) -> int:
        """Length of the conversation so far."""
        return len(self._conversation.said)

    def turn(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        keep_tokens: int | None = None,
        deadline_s: float | None = None,
    ) -> Turn:
        """Add *prompt* (text or token ids) to the conversation and have it answered.

        Only the first *keep_tokens* of the conversation are kept, if given: this is how
        a history is compacted. What is kept is reused. The first token should be there
        in *deadline_s* seconds: the turn goes before others when that gets close.

        Await it for the whole ``Reply``, or enter it with ``async with`` and iterate
        over its chunks. Raises WrongInput, TurnRefused where it can never fit,
        SessionEnded, or what the backend raises.
        """
        said = Append(prompt=prompt, keep_tokens=keep_tokens)
        sampling = sampling or Sampling()
        return Turn(self._conversation, said, max_tokens, sampling, deadline_s)

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        deadline_s: float | None = None,
    ) -> Turn:
        """Let the model answer to *messages*, which replace the conversation.

        What they share with the conversation so far is reused. Raises as ``turn`` does.
        """
        said = Replace(messages=messages)
        sampling = sampling or Sampling()
        return Turn(self._conversation, said, max_tokens, sampling, deadline_s)

    def fork(self, id: str | None = None, *, blocking: bool = True) -> Self:
        """Open a session whose conversation begins as this one's is now.

        What this one has in the store by the time of the fork's first turn is restored
        for it, as long as it is no more than both have in common; else the fork's first
        prompt is computed. This session's tool calls wait for the end of the fork if it
        is *blocking*: the scheduler reckons with that. Raises as ``Runtime.session``.
        """
        return type(self)(self._conversation.fork(id, blocking=blocking))

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
        self._conversation.check_open()
        self._calls += 1
        call = CallId(f"{self.id}/{self._calls}")
        kind = class_name or tool_class(name, command)
        return ToolCall(self._conversation, call, name, kind, expected_s)

    async def aclose(self) -> None:
        """End the session and let its state go, wherever it is.

        Raises SessionBusy while a turn is in progress, SessionEnded after the runtime.
        """
        if not self._conversation.ended:
            self._conversation.close()

    async def detach(self) -> None:
        """End the session here, and leave its state in the store.

        A session of the same id and tenant with ``resume``, here or in another process,
        goes on from it. Raises as ``aclose``.
        """
        if not self._conversation.ended:
            self._conversation.close(kept=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._conversation.ended:
            with contextlib.suppress(SessionEnded):  # the runtime may have gone first
                self._conversation.close(failed=error is not None)
