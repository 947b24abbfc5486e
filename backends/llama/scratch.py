"""The folder through which state enters and leaves the engine.

llama-server hands out a slot's state as a file only. On a tmpfs that is a copy in
memory; on a disk it is disk traffic, which the caller is told about. The folder is
private, its name cannot be guessed, and it goes away with the engine.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

MEMORY_FOLDERS: Final = (Path("/dev/shm"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """One private folder; ``note`` is a sentence for the user, empty if all is well."""

    folder: Path
    in_memory: bool
    note: str

    @classmethod
    def create(
        cls, needed_bytes: int, memory_folders: Sequence[Path] = MEMORY_FOLDERS
    ) -> Self:
        """Make the folder where *needed_bytes* fit, in memory if at all possible."""
        for parent in memory_folders:
            if os.access(parent, os.W_OK) and free_bytes(parent) >= needed_bytes:
                return cls(folder=_private_folder(parent), in_memory=True, note="")
        parent = Path(tempfile.gettempdir())
        return cls(
            folder=_private_folder(parent),
            in_memory=False,
            note=(
                f"slot files go through {parent}, not through memory: no tmpfs has "
                f"the {needed_bytes:,} bytes free that two full slots take"
            ),
        )

    def new_path(self) -> Path:
        """Return a path in the folder that nothing else uses."""
        return self.folder / f"{secrets.token_hex(16)}.slot"

    def free_bytes(self) -> int:
        """Return how much still fits into the folder."""
        return free_bytes(self.folder)

    def remove(self) -> None:
        """Remove the folder and everything in it; removing it twice is no error."""
        shutil.rmtree(self.folder, ignore_errors=True)


def free_bytes(folder: Path) -> int:
    """Return the bytes that an unprivileged process can still write below *folder*."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _private_folder(parent: Path) -> Path:
    # mkdtemp makes it with mode 0700 and never reuses what is there.
    return Path(tempfile.mkdtemp(prefix="kvalet-slots-", dir=parent))
