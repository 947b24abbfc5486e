"""State files on their way between the engine's folder and memory.

Blocking code, to be run in a thread. A file never lies under the name that the server
is given before it is whole, and none is left behind.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...state_store import KVState, StateCorrupt, hash_token_ids
from ..errors import ExportFailed, ImportRefused
from .client import Saved
from .slot_file import BadSlotFile, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What must agree before an engine may load a state."""

    model: str
    engine: str
    layout: str


def fingerprint(model_path: Path) -> str:
    """Return what names the weights: the sha256 of the model file."""
    with model_path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def read_token_ids(path: Path) -> list[int]:
    """Return the token list of the slot file at *path*; raise ExportFailed."""
    try:
        return parse(path.read_bytes()).token_ids
    except (BadSlotFile, OSError) as error:
        raise ExportFailed(f"the engine's state can't be read: {error}") from error


def collect(
    path: Path, saved: Saved, key: str, token_ids: Sequence[int], source: Provenance
) -> KVState:
    """Read, check and seal what the engine saved at *path*; raise ExportFailed."""
    try:
        payload = path.read_bytes()
        content = parse(payload)
    except (BadSlotFile, OSError) as error:
        raise ExportFailed(f"the state of {key!r} can't be used: {error}") from error
    if len(payload) != saved.n_written:
        raise ExportFailed(
            f"the engine says it wrote {saved.n_written} bytes for {key!r}, "
            f"the file has {len(payload)}"
        )
    if content.token_ids != list(token_ids):
        raise ExportFailed(
            f"the slot holds {len(content.token_ids)} tokens that are not the "
            f"{len(token_ids)} of {key!r}"
        )
    return KVState.seal(
        key=key,
        model=source.model,
        engine=source.engine,
        layout=source.layout,
        token_ids=token_ids,
        payload=payload,
    )


def check(state: KVState, token_ids: Sequence[int], own: Provenance) -> None:
    """Raise ImportRefused unless *state* is whole, ours and of *token_ids*."""
    manifest = state.manifest
    for name in ("model", "engine", "layout"):
        theirs, ours = getattr(manifest, name), getattr(own, name)
        if theirs != ours:
            raise ImportRefused(
                f"state {manifest.key!r} is of {name} {theirs!r}, not {ours!r}"
            )
    if manifest.token_count != len(token_ids) or (
        manifest.token_hash != hash_token_ids(token_ids)
    ):
        raise ImportRefused(
            f"state {manifest.key!r} is of {manifest.token_count} other tokens than "
            f"the {len(token_ids)} that are to be continued"
        )
    try:
        state.verify()
        held = parse(b"".join(state.payloads)).token_ids
    except (StateCorrupt, BadSlotFile) as error:
        raise ImportRefused(str(error)) from error
    if held != list(token_ids):
        raise ImportRefused(
            f"state {manifest.key!r} holds other tokens than its manifest says"
        )


def stage(state: KVState, path: Path) -> int:
    """Write *state* to *path*, whole or not at all; return its length in bytes."""
    partial = path.with_suffix(".part")
    expected = sum(segment.length_bytes for segment in state.manifest.segments)
    try:
        with partial.open("xb") as file:
            file.writelines(state.payloads)
        written = partial.stat().st_size
        if written != expected:
            raise ImportRefused(
                f"{written} of {expected} bytes of state {state.manifest.key!r} "
                f"were written to {partial}"
            )
        partial.rename(path)
    except OSError as error:
        raise ImportRefused(
            f"state {state.manifest.key!r} can't be written for the engine: {error}"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return expected
