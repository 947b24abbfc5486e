"""Tool calls, timed.

A tool call is the time between a start and an end on the runtime's clock; how it ended
follows from how its block was left. Calls of one session that overlap are one wait: it
ends with the last of them.
"""

import contextlib
import math
from collections.abc import Awaitable
from types import TracebackType
from typing import Self, TypeVar

import anyio

from ..scheduler import CallId, SchedulerError, ToolEnded, ToolStarted
from .conversation import Conversation
from .errors import SessionEnded, WrongInput
from .tool_class import ToolClass

Result = TypeVar("Result")


class ToolCall:
    """One call of a tool: ``async with session.tool("Bash"): ...``.

    Leaving the block by TimeoutError counts as a timeout, by cancellation as cancelled,
    by any other exception as an error; the exception passes through. Inside, ``fail()``
    marks a call whose tool reported an error without raising.
    """

    def __init__(
        self,
        conversation: Conversation,
        call: CallId,
        name: str,
        class_name: ToolClass,
        expected_s: float | None = None,
    ) -> None:
        if expected_s is not None and not 0 <= expected_s < math.inf:
            raise WrongInput(
                f"expected_s of tool {name!r} must be finite and not negative, "
                f"not {expected_s}"
            )
        self._conversation = conversation
        self._call = call
        self._name = name
        self._class = class_name
        self._expected_s = expected_s
        self._began_s = 0.0
        self._status = "ok"

    async def __aenter__(self) -> Self:
        self._began_s = self._conversation.dispatch.clock.now_s()
        self._conversation.dispatch.happen(
            ToolStarted(
                at_s=self._began_s,
                session=self._conversation.id,
                call=self._call,
                tool=self._name,
                tool_class=self._class,
                expected_s=self._expected_s,
            )
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        now_s = self._conversation.dispatch.clock.now_s()
        # A tool may outlive its session or the runtime; its own end is what counts.
        with contextlib.suppress(SessionEnded, SchedulerError):
            self._conversation.dispatch.happen(
                ToolEnded(
                    at_s=now_s,
                    session=self._conversation.id,
                    call=self._call,
                    tool=self._name,
                    tool_class=self._class,
                    seconds=now_s - self._began_s,
                    status=self._status if error is None else _status_of(error),
                )
            )

    def fail(self, status: str = "error") -> None:
        """Say that the tool failed: error, timeout or cancelled."""
        self._status = status

    async def run(self, awaitable: Awaitable[Result]) -> Result:
        """Await *awaitable* as the tool's work and return its result."""
        async with self:
            return await awaitable


def _status_of(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return "cancelled"
    return "error"
