"""How long to leave a tier alone that does not answer."""

import asyncio
import contextlib
from typing import Final

from .errors import StateStoreError
from .store import Inventory

_SHORTEST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 4.0


class Patience:
    """Pauses double from 0.25 s up to 4 s, until something works again."""

    def __init__(self, tier: Inventory) -> None:
        self.is_over = True
        self._tier = tier
        self._pause_s = _SHORTEST_PAUSE_S
        self._hurry = asyncio.Event()

    def begin(self) -> None:
        """Leave the tier alone from now on."""
        self.is_over = False

    def worked(self) -> None:
        """Note that the tier has answered."""
        self._pause_s = _SHORTEST_PAUSE_S

    def hurry(self) -> None:
        """Wait no more from now on."""
        self._hurry.set()

    async def wait(self) -> None:
        """Wait for one pause; it is over then if the tier says that it's available."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        with contextlib.suppress(StateStoreError):
            self.is_over = (await self._tier.stat()).available
