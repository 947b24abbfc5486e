"""The folder through which state enters and leaves the engine.

llama-server hands out a slot's state as a file only. On a tmpfs that is a copy in
memory; on a disk it is disk traffic, which the caller is told about. The folder is
private, its name cannot be guessed, and it goes away with the engine. Where both that
engine and its owner were killed at once, nobody is left to remove it; so each owner
holds a lock in its folder, and whoever comes next removes folders whose lock is free.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self

MEMORY_FOLDERS: Final = (Path("/dev/shm"),)

_PREFIX: Final = "kvalet-slots-"
_OWNER: Final = ".owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """One private folder; ``note`` is a sentence for the user, empty if all is well."""

    folder: Path
    in_memory: bool
    note: str
    lock: IO[bytes]

    @classmethod
    def create(
        cls, needed_bytes: int, memory_folders: Sequence[Path] = MEMORY_FOLDERS
    ) -> Self:
        """Make the folder where *needed_bytes* fit, in memory if at all possible."""
        for parent in memory_folders:
            if not os.access(parent, os.W_OK):
                continue
            remove_abandoned(parent)
            if free_bytes(parent) >= needed_bytes:
                folder, lock = _private_folder(parent)
                return cls(folder=folder, in_memory=True, note="", lock=lock)
        parent = Path(tempfile.gettempdir())
        remove_abandoned(parent)
        folder, lock = _private_folder(parent)
        return cls(
            folder=folder,
            in_memory=False,
            lock=lock,
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
        self.lock.close()


def free_bytes(folder: Path) -> int:
    """Return the bytes that an unprivileged process can still write below *folder*."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def remove_abandoned(parent: Path) -> None:
    """Remove the folders below *parent* whose owners are gone."""
    for owner in parent.glob(f"{_PREFIX}*/{_OWNER}"):
        # A folder may be another user's, or gone by now.
        with contextlib.suppress(OSError), _opened(owner, os.O_NOFOLLOW) as lock:
            if _locked(lock):
                shutil.rmtree(owner.parent, ignore_errors=True)


def _private_folder(parent: Path) -> tuple[Path, IO[bytes]]:
    # mkdtemp makes it with mode 0700 and never reuses what is there.
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    # Locked under another name first: what has its final name is never found unlocked.
    draft = folder / f"{_OWNER}.draft"
    lock = _opened(draft, os.O_CREAT | os.O_EXCL)
    _locked(lock)
    draft.rename(folder / _OWNER)
    return folder, lock


def _opened(path: Path, flags: int) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | flags, 0o600), "r+b", buffering=0)


def _locked(lock: IO[bytes]) -> bool:
    """Take the lock of an open file if it is free; the kernel frees it with us."""
    try:
        import fcntl
    except ImportError:  # no such locks here, so nothing is ever known to be abandoned
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
