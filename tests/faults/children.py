"""Conversations in other processes (``child.py``), seen from here."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from .stage import Tokens

_ROOT: Final = Path(__file__).parents[2]


class Child:
    """A conversation in another process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, *words: str, within: Sequence[str] = ()) -> "Child":
        """Start it; return when it is about to begin."""
        command = [*within, sys.executable, "-m", "tests.faults.child", *words]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=_ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        return cls(process)

    async def result(self) -> dict[str, Any]:
        """Return what it printed at its end."""
        output, _ = await self._process.communicate()
        assert self._process.returncode == 0
        found: dict[str, Any] = json.loads(output)
        return found


def as_json(said: Sequence[Sequence[Tokens]]) -> object:
    """Return what a child prints of that."""
    return json.loads(json.dumps(said))
