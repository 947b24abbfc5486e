"""``kvalet doctor``: what is installed here, and whether what it needs works.

One line for each thing that was looked at: ok, a warning (it works, but not as it
should), or a problem (it does not work).
"""

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, Final
from uuid import uuid4

import typer

from ...backends import ModelUnavailable
from ...backends.llama import default_model_path
from ...backends.llama.scratch import MEMORY_FOLDERS, free_bytes
from ...state_store import Inventory, KVState, StateStoreError
from ...state_store.open import open_tier, read_sealer
from ...state_store.sealing import Sealer
from ...state_store.setting import MemoryTier, read_setting
from .loop import run_to_end

_EXTRAS: Final = ("local", "crypto")
# Two slots of the default model at its full context take 0.4 GB.
_SCRATCH_BYTES: Final = 2**29
_TRIAL_BYTES: Final = 2**20
# As our own pyproject.toml writes them.
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[\w.-]+) ?(?P<relation>[>=]=)(?P<version>[\w.]+) ?;"
    r" ?extra == ['\"](?P<extra>\w+)['\"]"
)


class Finding(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was looked at."""

    finding: Finding
    text: str


def doctor(
    store: Annotated[
        str | None,
        typer.Option(
            envvar="KVALET_STORE",
            help="Try this store too: as for kvalet replay.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Look at what is installed, the caches and a store; exit 1 if a part fails."""
    failed = False
    for line in _lines(store):
        typer.echo(f"{line.finding:8} {line.text}")
        failed = failed or line.finding is Finding.PROBLEM
    if failed:
        sys.exit(1)


def _lines(store: str | None) -> Iterator[Line]:
    yield _ok(f"kvalet {version('kvalet')} on Python {sys.version.split()[0]}")
    for extra in _EXTRAS:
        yield from _extra(extra)
    yield from _engine()
    yield _model()
    yield _scratch()
    try:
        sealer = read_sealer(os.environ)
    except StateStoreError as error:
        yield _problem(str(error))
        return
    if sealer.key_id:
        yield _ok(f"parked state is sealed with key {sealer.key_id!r}")
    if store is not None:
        yield from run_to_end(_store(store, sealer))


def _ok(text: str) -> Line:
    return Line(finding=Finding.OK, text=text)


def _warning(text: str) -> Line:
    return Line(finding=Finding.WARNING, text=text)


def _problem(text: str) -> Line:
    return Line(finding=Finding.PROBLEM, text=text)


def _extra(extra: str) -> Iterator[Line]:
    """Compare what *extra* asks for with what is installed."""
    for text in requires("kvalet") or []:
        wanted = _REQUIREMENT.fullmatch(text)
        if wanted is None or wanted["extra"] != extra:
            continue
        name, relation, least = wanted["name"], wanted["relation"], wanted["version"]
        install = f"pip install 'kvalet[{extra}]'"
        try:
            found = version(name)
        except PackageNotFoundError:
            yield _warning(f"{name} is not installed: {install}")
            continue
        fits = found == least if relation == "==" else _key(found) >= _key(least)
        if fits:
            yield _ok(f"{name} {found}, for kvalet[{extra}]")
        else:
            yield _warning(f"{name} is {found}, not {relation}{least}: {install}")


def _key(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _engine() -> Iterator[Line]:
    try:
        import_module("xllamacpp")
    except ModuleNotFoundError:
        return  # which the extra's line says
    except ImportError as error:
        yield _problem(f"the embedded engine can't be loaded: {error}")
        return
    yield _ok("the embedded engine loads")


def _model() -> Line:
    try:
        path = default_model_path()
    except ModelUnavailable as error:
        return _warning(str(error))
    if path.is_file():
        size_mb = path.stat().st_size / 1e6
        return _ok(f"the default model is in {path} ({size_mb:.0f} MB)")
    parent = next(folder for folder in path.parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        return _problem(f"no model can be kept in {path.parent}: can't write {parent}")
    return _ok(f"the default model will be fetched to {path} on first use")


def _scratch() -> Line:
    for folder in MEMORY_FOLDERS:
        if os.access(folder, os.W_OK):
            free_mb = free_bytes(folder) / 1e6
            text = f"{folder} has {free_mb:,.0f} MB free for state on its way"
            if free_mb * 1e6 < _SCRATCH_BYTES:
                return _warning(f"{text}; what does not fit goes over the disk")
            return _ok(text)
    folders = ", ".join(map(str, MEMORY_FOLDERS))
    return _warning(f"no memory folder ({folders}): parking goes over the disk")


async def _store(text: str, sealer: Sealer) -> list[Line]:
    """Open every tier, and park, fetch and drop a state in it."""
    lines: list[Line] = []
    try:
        tiers = read_setting(text).tiers
    except StateStoreError as error:
        return [_problem(str(error))]
    for tier in tiers:
        if isinstance(tier, MemoryTier):
            lines.append(_ok("the memory store needs nothing"))
            continue
        notes: list[str] = []
        try:
            store = await open_tier(tier, sealer=sealer, say=notes.append)
            async with aclosing(store):
                lines.append(_ok(await _trial(store)))
        except StateStoreError as error:
            lines.append(_problem(str(error)))
        lines += map(_warning, notes)
    return lines


async def _trial(store: Inventory) -> str:
    """Return how long it took; raise StateStoreError."""
    state = KVState.seal(
        key=f"doctor-{uuid4().hex}",
        model="doctor",
        engine="doctor",
        layout="doctor",
        token_ids=[0],
        payload=os.urandom(_TRIAL_BYTES),
    )
    key = state.manifest.key
    began_s = time.perf_counter()
    try:
        await store.park(state)
        parked_s = time.perf_counter()
        await store.fetch(key)
        fetched_s = time.perf_counter()
    finally:
        with suppress(StateStoreError):
            await store.drop(key)
    tier = (await store.stat()).tier
    return (
        f"the {tier} store works: 1 MiB parked in {1e3 * (parked_s - began_s):.1f} ms, "
        f"fetched in {1e3 * (fetched_s - parked_s):.1f} ms"
    )
