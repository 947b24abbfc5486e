"""Brings a lost engine back, once for all who have noticed.

Whatever was on the accelerator is gone then; what was parked is not. The turns that
were running go on behind what they have said already, so the agent notices a delay and
nothing else.
"""

from typing import Protocol, runtime_checkable

import anyio

from ..backends import Backend


@runtime_checkable
class Restartable(Protocol):
    """A backend that owns its engine and can replace it."""

    async def restart(self) -> None:
        """Replace the engine by a fresh one; all slots are empty afterwards."""
        ...


class Recovery:
    """Restarts the engine of one backend, if it can be restarted."""

    def __init__(self, backend: Backend) -> None:
        self._engine = backend if isinstance(backend, Restartable) else None
        self._restarting = anyio.Lock()
        self.generation = 0

    @property
    def possible(self) -> bool:
        """Whether a lost engine can be replaced."""
        return self._engine is not None

    async def wait(self) -> None:
        """Return at once, or when a restart that is in progress has ended."""
        if self._restarting.locked():
            async with self._restarting:
                pass

    async def recover(self, generation: int) -> bool:
        """Replace the engine that was lost in *generation*, unless somebody has.

        Returns whether this call did it. Raises EngineStartError where no engine comes
        up.
        """
        assert self._engine is not None
        async with self._restarting:
            if generation != self.generation:
                return False
            await self._engine.restart()
            self.generation += 1
            return True
