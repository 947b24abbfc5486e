"""``kvalet.costs/1``: what a backend's work costs, kept from one run to the next.

One file per backend, in the user's cache folder unless said otherwise. Costs belong to
the backend that they were measured on (engine, model, threads, device), so its identity
stands in the file, and a file of another backend is refused.
"""

import contextlib
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from ..scheduler import InvalidSetting
from ..scheduler.cost import CostModel, CostRecord
from .errors import WrongInput

SCHEMA: Final = "kvalet.costs/1"


class CostFile(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file; ``backend`` is ``Capabilities.identity``."""

    schema: str = SCHEMA
    kvalet: str
    backend: str
    costs: CostRecord


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    backend: str


def costs_path(backend: str) -> Path:
    """Return where the costs of *backend* are kept: a file of its own in the cache.

    Raises WrongInput where there is no cache folder.
    """
    name = re.sub(r"[^A-Za-z0-9.=-]+", "-", backend)[:60].strip("-")
    # Two long identities may begin alike.
    digest = xxhash.xxh3_64_hexdigest(backend.encode())
    return _cache_folder() / "costs" / f"{name}-{digest}.json"


def load_costs(path: Path, *, backend: str) -> CostModel:
    """Return the costs in the file at *path*, which must be those of *backend*.

    Raises WrongInput with what is wrong with it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WrongInput(
            f"the cost file {path} can't be read: {error.strerror}"
        ) from error
    try:
        header = msgspec.json.decode(content, type=_Header)
        _check(path, header, backend)
        return CostModel.from_record(msgspec.json.decode(content, type=CostFile).costs)
    except (msgspec.MsgspecError, InvalidSetting, UnicodeDecodeError) as error:
        raise WrongInput(
            f"{path} is no cost file that can be used ({error}); "
            "without it 'kvalet calibrate' writes a new one"
        ) from error


def save_costs(path: Path, costs: CostModel, *, backend: str) -> None:
    """Write the file whole or not at all; raise WrongInput where that can't be."""
    file = CostFile(kvalet=version("kvalet"), backend=backend, costs=costs.record())
    content = msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise WrongInput(
            f"the cost file {path} can't be written: {error.strerror}"
        ) from error


def _check(path: Path, header: _Header, backend: str) -> None:
    if header.schema != SCHEMA:
        raise WrongInput(
            f"the cost file {path} has the schema {header.schema!r}, "
            f"this version reads {SCHEMA!r}"
        )
    if header.backend != backend:
        raise WrongInput(
            f"the cost file {path} is of the backend {header.backend!r}, "
            f"not of {backend!r}"
        )


def _cache_folder() -> Path:
    chosen = os.environ.get("KVALET_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        import platformdirs
    except ImportError:
        raise WrongInput(
            "there is no place for a cost file: set KVALET_CACHE_DIR to a folder, "
            "or pip install 'kvalet[local]'"
        ) from None
    return Path(platformdirs.user_cache_dir("kvalet"))
