"""State files on their way between the engine's folder and memory.

Blocking code, to be run in a thread. A file never lies under the name that the server
is given before it is whole, and none is left behind.
"""

import hashlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...state_store import KVState, StateCorrupt, hash_token_ids
from ..errors import ExportFailed, ImportRefused
from .client import Saved
from .layout import Layout
from .slot_file import BadSlotFile, parse_token_ids


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
        return parse_token_ids(_mapped(path)).tolist()
    except (BadSlotFile, OSError) as error:
        raise ExportFailed(f"the engine's state can't be read: {error}") from error


def collect(
    path: Path,
    saved: Saved,
    key: str,
    token_ids: Sequence[int],
    first_token: int,
    source: Provenance,
    layout: Layout,
) -> KVState:
    """Read, check and seal what the engine saved at *path*; raise ExportFailed."""
    try:
        data = _mapped(path)
        if len(data) != saved.n_written:
            raise BadSlotFile(
                f"the engine says it wrote {saved.n_written} bytes, "
                f"the file has {len(data)}"
            )
        if saved.n_saved != len(token_ids) and not layout.exports_rows:
            raise BadSlotFile(
                f"the slot holds {saved.n_saved} tokens, not {len(token_ids)}"
            )
        cut = layout.cut(data, token_ids, first_token)
    except (BadSlotFile, OSError) as error:
        raise ExportFailed(f"the state of {key!r} can't be used: {error}") from error
    return KVState.seal_segments(
        key=key,
        model=source.model,
        engine=source.engine,
        layout=source.layout,
        head=cut.head,
        token_ids=token_ids,
        ends=cut.ends,
        payloads=cut.payloads,
        first_token=first_token,
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
    except StateCorrupt as error:
        raise ImportRefused(str(error)) from error


def stage(
    state: KVState, token_ids: Sequence[int], layout: Layout, slot: int, path: Path
) -> int:
    """Write *state*'s file to *path*, whole or not at all; return its length.

    Raises ImportRefused.
    """
    partial = path.with_suffix(".part")
    length_bytes = 0
    try:
        with partial.open("xb") as file:
            for piece in layout.pieces(state, token_ids, slot):
                length_bytes += file.write(piece)
        written_bytes = partial.stat().st_size
        if written_bytes != length_bytes:
            raise ImportRefused(
                f"{written_bytes} of {length_bytes} bytes of state "
                f"{state.manifest.key!r} were written to {partial}"
            )
        partial.rename(path)
    except OSError as error:
        raise ImportRefused(
            f"state {state.manifest.key!r} can't be written for the engine: {error}"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return length_bytes


def _mapped(path: Path) -> memoryview:
    """Return the file's bytes, of which only those that are looked at are read."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise BadSlotFile("the slot file is empty")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
