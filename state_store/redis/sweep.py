"""Finds segments whose sessions have no state, and lets go of them.

They are left by a process that died while it parked. A session that is parking for the
first time has a lease and no state yet; its segments stay.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from .layout import Layout
from .scripts import ANY_TOKEN, RELEASE
from .server import Call, Server

_PAGE: Final = 64


class Sweeper:
    """Looks through the segments, some at each call; goes on where it stopped."""

    def __init__(self, server: Server, layout: Layout) -> None:
        self._server = server
        self._layout = layout
        self._keys: AsyncGenerator[str] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def sweep(self, limit: int) -> int:
        """Look at up to *limit* segments; return from how many a claim was taken."""
        released = 0
        async with self._one_at_a_time:
            while limit > 0 and (page := await self._page(min(limit, _PAGE))):
                limit -= len(page)
                for key in page:
                    released += await self._sweep_one(key)
        return released

    async def aclose(self) -> None:
        """Look no further."""
        if self._keys is not None:
            await self._keys.aclose()

    async def _page(self, size: int) -> list[str]:
        """Return the next keys; none once, at the end of a round."""
        if self._keys is None:
            self._keys = self._server.scan(self._layout.referrers)
        page: list[str] = []
        try:
            async for key in self._keys:
                page.append(key)
                if len(page) == size:
                    return page
        except BaseException:
            self._keys = None
            raise
        self._keys = None
        return page

    async def _sweep_one(self, key: str) -> int:
        fields: dict[bytes, bytes] = await self._server.ask("HGETALL", key)
        chunks = int(fields.pop(b"n", b"0"))
        segment = self._layout.segment_named(self._layout.name_in(key), chunks)
        calls: list[Call] = []
        for name in map(bytes.decode, fields):
            if not await self._has_state(name):
                calls.append((segment.all, (name, ANY_TOKEN)))
        await self._server.run_each(RELEASE, calls)
        return len(calls)

    async def _has_state(self, name: str) -> bool:
        session = self._layout.session_named(name)
        found: Any = await self._server.ask("EXISTS", session.manifest, session.lease)
        return bool(found)
