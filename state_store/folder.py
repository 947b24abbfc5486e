"""A folder that only its owner can read, and that one process has at a time.

Everything in here blocks. The folder has mode 0700, files 0600, links are not followed,
and every access goes through the folder's descriptor: whoever moves the folder or puts
another in its place changes nothing. A file is written under another name and renamed,
so what has its final name was written to its end.
"""

import contextlib
import os
import stat
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self

from .errors import StoreUnusable
from .room import make_room
from .state import Payload

PART: Final = ".part"
"""What the name of a file ends in that is being written."""

_OWNER: Final = ".owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """An open folder, locked until it is closed."""

    path: Path
    descriptor: int
    lock: IO[bytes]

    @classmethod
    def open(cls, path: Path) -> Self:
        """Make the folder if it isn't there, and take it; raise StoreUnusable."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _open_folder(path)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            _check_ours(path, descriptor)
            # Closed to others, not opened to its owner who closed it.
            os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o700)
            lock = _locked(path, descriptor)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise _unusable(path, error) from error
            raise
        return cls(path=path, descriptor=descriptor, lock=lock)

    def close(self) -> None:
        """Let go of the folder, for the next one; closing twice is no error."""
        if not self.lock.closed:
            os.close(self.descriptor)
            self.lock.close()

    def names(self) -> list[str]:
        """Return the names of the folders in it."""
        return [
            name
            for name in os.listdir(self.descriptor)
            if stat.S_ISDIR(
                os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode
            )
        ]

    @contextlib.contextmanager
    def inside(self, name: str) -> Generator[int]:
        """Yield the descriptor of a folder in it; raise FileNotFoundError."""
        descriptor = _open_folder(name, dir_fd=self.descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def make(self, name: str) -> None:
        """Make a folder in it, if it isn't there."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.descriptor)

    def remove_empty(self, name: str) -> None:
        """Remove a folder in it, unless something is in there."""
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=self.descriptor)


def write_file(folder: int, name: str, data: Payload) -> None:
    """Write a file in *folder*, to its end or not at all; raise OSError."""
    part = name + PART
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(part, flags, 0o600, dir_fd=folder)
    try:
        try:
            _write_all(descriptor, memoryview(data))
        finally:
            os.close(descriptor)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise


def read_file(folder: int, name: str) -> memoryview:
    """Return what is in a file of *folder*, in a buffer of its own; raise OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        room = make_room(os.fstat(descriptor).st_size)
        filled = 0
        while count := os.readv(descriptor, [room[filled:]]):
            filled += count
        return room[:filled]
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _open_folder(path: str | Path, *, dir_fd: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, dir_fd=dir_fd)


def _check_ours(path: Path, descriptor: int) -> None:
    if os.fstat(descriptor).st_uid != os.geteuid():
        raise StoreUnusable(
            f"folder {str(path)!r} belongs to another user; choose one of your own, "
            f"or one below it"
        )
    names = os.listdir(descriptor)
    if names and _OWNER not in names:
        raise StoreUnusable(
            f"folder {str(path)!r} holds other files, such as {min(names)!r}; "
            f"choose an empty or a new one"
        )


def _locked(path: Path, descriptor: int) -> IO[bytes]:
    """Take the folder's lock; the kernel frees it with this process."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.fdopen(
        os.open(_OWNER, flags, 0o600, dir_fd=descriptor), "r+b", buffering=0
    )
    # Only where there is a disk store: the module itself can be imported anywhere.
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        if not isinstance(error, BlockingIOError):
            raise
        raise StoreUnusable(
            f"folder {str(path)!r} is in use by another store; each needs its own"
        ) from error
    return lock


def _unusable(path: Path, error: OSError) -> StoreUnusable:
    if os.path.islink(path):
        why = "is a link; name the folder that it leads to"
    elif isinstance(error, FileExistsError | NotADirectoryError):
        why = "is not a folder, or lies below something that is none"
    else:
        why = f"can't be written: {error.strerror}"
    return StoreUnusable(f"{str(path)!r} {why}")
