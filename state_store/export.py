"""A parked state as one file, to keep or to send with a report of a defect.

    15 bytes  "kvalet.state/1" and a line end
    8 bytes   length of the manifest, little-endian
              the manifest, as ``codec`` writes it
              the payloads of its segments, in order

It is not encrypted. Everything in here blocks.
"""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import IO, Final

from .codec import SCHEMA, decode_manifest, encode_manifest
from .errors import StateCorrupt
from .room import make_room
from .state import KVState, Manifest

_MAGIC: Final = f"{SCHEMA}\n".encode()
_LENGTH_BYTES: Final = 8


def write_state(state: KVState, path: Path) -> int:
    """Write *state* to the file at *path*, for its owner only; return its length.

    What was there is replaced, once the new file is complete. Raises OSError, and
    StateCorrupt for a state that isn't whole.
    """
    state.verify()
    manifest = encode_manifest(state.manifest)
    head = _MAGIC + len(manifest).to_bytes(_LENGTH_BYTES, "little")
    # It is made with mode 0600.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for part in (head, manifest, *state.payloads):
                file.write(part)
            length_bytes = file.tell()
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return length_bytes


def read_state(path: Path) -> KVState:
    """Return the verified state in the file at *path*.

    Raises OSError, and StateCorrupt where it is another file, cut short or damaged.
    """
    with path.open("rb") as file:
        length_bytes = os.fstat(file.fileno()).st_size
        manifest = _read_manifest(file, path, length_bytes)
        expected_bytes = file.tell() + manifest.length_bytes
        # Compared before memory is taken for what may not be there.
        if length_bytes != expected_bytes:
            raise StateCorrupt(
                f"the file {path} has {length_bytes:,} bytes where its manifest makes "
                f"it {expected_bytes:,}"
            )
        payloads: list[memoryview] = []
        for segment in manifest.segments:
            room = make_room(segment.length_bytes)
            _read_into(file, room)
            payloads.append(room.toreadonly())
    state = KVState(manifest=manifest, payloads=tuple(payloads))
    state.verify()
    return state


def _read_manifest(file: IO[bytes], path: Path, length_bytes: int) -> Manifest:
    magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        if magic and _MAGIC.startswith(magic):
            raise _cut_short(path)
        raise StateCorrupt(f"the file {path} is no {SCHEMA}")
    length = file.read(_LENGTH_BYTES)
    manifest_bytes = int.from_bytes(length, "little")
    if len(length) < _LENGTH_BYTES or file.tell() + manifest_bytes > length_bytes:
        raise _cut_short(path)
    try:
        return decode_manifest(file.read(manifest_bytes))
    except StateCorrupt as error:
        raise StateCorrupt(f"the file {path}: {error}") from error


def _read_into(file: IO[bytes], room: memoryview) -> None:
    """Fill *room*; what isn't filled, because the file shrinks, fails its checksum."""
    done = 0
    while done < len(room):
        part = file.read(min(len(room) - done, 1 << 20))
        if not part:
            return
        room[done : done + len(part)] = part
        done += len(part)


def _cut_short(path: Path) -> StateCorrupt:
    return StateCorrupt(f"the file {path} is cut short")
