"""Runs a command's coroutine to its end, or to Ctrl-C."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..clock import VirtualTimeLoop

Result = TypeVar("Result")


def run_to_end(work: Coroutine[Any, Any, Result], *, virtual: bool = False) -> Result:
    """Run *work* on a loop of its own; SIGINT and SIGTERM cancel it.

    Raises KeyboardInterrupt when it was cancelled, after it has cleaned up.
    """

    async def main() -> Result:
        task = asyncio.current_task()
        assert task is not None
        # The runner cancels us on SIGINT; a polite kill deserves the same.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    factory = VirtualTimeLoop if virtual else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(main())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
