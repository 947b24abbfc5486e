"""Parked states as files: how they are named, written, read, and found again.

In the folder of a tenant lie its segments (``.rows``) and manifests (``.state``). A
name is the sealer's digest of the address or key, and a number that no other file has
or had: a file that is about to be removed is never mistaken for a new one of the same
content. All of it blocks.

A manifest's file is the tenant's name, sealed for the store as a whole, behind its
length, and the manifest, sealed for the tenant. It is written last; of two for the same
key, which a crash may leave, the one with the higher number is the later one.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple, Self

from .codec import decode_manifest, encode_manifest
from .errors import StateCorrupt, StateStoreError, StoreUnusable
from .folder import PART, Folder, read_file, write_file
from .keys import tenant_of
from .sealing import Sealer
from .shelf import Place, places_of, wrong_places
from .state import KVState, Manifest, Payload

# The file that tells whether the keys are those that the states were sealed with.
_MARK: Final = "format"
_MARK_FOLDER: Final = "store"
_FORMAT: Final = b"kvalet.disk/1"
_ROWS: Final = "rows"
_STATE: Final = "state"
_NAME: Final = re.compile(rf"([0-9a-f]{{32}})\.([0-9a-f]+)\.({_ROWS}|{_STATE})")
_LENGTH_BYTES: Final = 4


class FileName(NamedTuple):
    """The folder of a tenant, and a file in it."""

    folder: str
    file: str


class Stopped(StateStoreError):
    """Nobody waits for the outcome any more; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The files of a state that are new."""

    manifest: FileName
    rows: Mapping[Place, FileName]


@dataclass(slots=True, kw_only=True)
class Found:
    """What a folder held: states, the least recently used first, and their segments."""

    states: list[tuple[Manifest, FileName]] = field(
        default_factory=list[tuple[Manifest, FileName]]
    )
    rows: dict[Place, FileName] = field(default_factory=dict[Place, FileName])
    unreadable: int = 0


class StateFiles:
    """The files of one store. Its methods may run in several threads at once."""

    def __init__(self, folder: Folder, sealer: Sealer) -> None:
        self._folder = folder
        self._sealer = sealer
        self._numbers = count(1)

    @classmethod
    def open(cls, path: Path, sealer: Sealer) -> tuple[Self, Found]:
        """Take the folder, and return what is in it; raise StoreUnusable."""
        folder = Folder.open(path)
        files = cls(folder, sealer)
        try:
            files._check_mark()
            return files, files._find()
        except BaseException as error:
            folder.close()
            if isinstance(error, OSError):
                raise StoreUnusable(
                    f"folder {str(path)!r} can't be read or written: {error.strerror}"
                ) from error
            raise

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    def close(self) -> None:
        """Let go of the folder; what is in it stays."""
        self._folder.close()

    def write(
        self, manifest: Manifest, rows: Mapping[Place, Payload], stop: Event
    ) -> Written:
        """Write *rows*, then the manifest.

        Raises OSError, or Stopped if *stop* was set in time, and leaves nothing then.
        """
        tenant = tenant_of(manifest.key)
        folder = self._sealer.name(tenant, "")
        self._folder.make(folder)
        written: dict[Place, FileName] = {}
        try:
            with self._folder.inside(folder) as inside:
                for place, payload in rows.items():
                    file = self._write(inside, tenant, place[1], _ROWS, payload, stop)
                    written[place] = FileName(folder, file)
                data = encode_manifest(manifest)
                file = self._write(inside, tenant, manifest.key, _STATE, data, stop)
                _touch(inside, file)
        except BaseException:
            self.remove(written.values())
            raise
        return Written(manifest=FileName(folder, file), rows=written)

    def read(
        self, manifest: Manifest, name: FileName, rows: Mapping[Place, FileName]
    ) -> tuple[KVState, StateCorrupt | None, tuple[Place, ...]]:
        """Return a state, and if it isn't right: why, and the places that are wrong.

        Raises OSError. A file that is gone counts as an empty one.
        """
        payloads: dict[Place, Payload] = dict.fromkeys(rows, b"")
        with (
            contextlib.suppress(FileNotFoundError),
            self._folder.inside(name.folder) as inside,
        ):
            for place, row in rows.items():
                payloads[place] = self._read(inside, place, row.file)
            _touch(inside, name.file)
        state = KVState(
            manifest=manifest,
            payloads=tuple(payloads[place] for place in places_of(manifest)),
        )
        try:
            state.verify()
        except StateCorrupt as error:
            return state, error, wrong_places(state)
        return state, None, ()

    def remove(self, names: Iterable[FileName]) -> int:
        """Remove files in this order; return how many couldn't be."""
        failures = 0
        for name in names:
            try:
                with self._folder.inside(name.folder) as inside:
                    os.unlink(name.file, dir_fd=inside)
            except FileNotFoundError:
                pass
            except OSError:
                failures += 1
        return failures

    def _write(
        self,
        inside: int,
        tenant: str,
        text: str,
        kind: str,
        data: Payload,
        stop: Event,
    ) -> str:
        if stop.is_set():
            raise Stopped("nobody waits for it")
        digest = self._sealer.name(tenant, text)
        file = f"{digest}.{next(self._numbers):x}.{kind}"
        sealed = self._sealer.seal(tenant, file, data)
        if kind == _STATE:
            whose = self._sealer.seal("", file, tenant.encode())
            length = len(whose).to_bytes(_LENGTH_BYTES, "little")
            sealed = b"".join((length, whose, sealed))
        write_file(inside, file, sealed)
        return file

    def _read(self, inside: int, place: Place, file: str) -> Payload:
        try:
            return self._sealer.open(place[0], file, read_file(inside, file))
        except (FileNotFoundError, StateCorrupt):
            return b""  # which is not what the manifest says, if it says anything

    def _check_mark(self) -> None:
        self._folder.make(_MARK_FOLDER)
        with self._folder.inside(_MARK_FOLDER) as inside:
            try:
                sealed = read_file(inside, _MARK)
                if self._sealer.open("", _MARK, sealed) != _FORMAT:
                    raise StateCorrupt("the mark says something else")
            except FileNotFoundError:
                pass
            except StateCorrupt as error:
                raise StoreUnusable(
                    f"folder {str(self.path)!r} holds states that were written with "
                    f"other keys, or by another version; give those keys, or "
                    f"choose another folder"
                ) from error
            # Under the key of now: the one before may go.
            write_file(inside, _MARK, self._sealer.seal("", _MARK, _FORMAT))

    def _find(self) -> Found:
        """Read every manifest, and remove what no state needs."""
        found = Found()
        times: dict[FileName, int] = {}
        highest = 0
        for folder in self._folder.names():
            if folder == _MARK_FOLDER:
                continue
            with self._folder.inside(folder) as inside:
                listing = _Listing.of(inside)
                highest = max(highest, listing.highest)
                kept = self._find_inside(folder, inside, listing, found)
                for file in listing.files - kept:
                    os.unlink(file, dir_fd=inside)
                for file in kept:
                    status = os.stat(file, dir_fd=inside, follow_symlinks=False)
                    times[FileName(folder, file)] = status.st_mtime_ns
            self._folder.remove_empty(folder)
        found.states.sort(key=lambda state: times[state[1]])
        self._numbers = count(highest + 1)
        return found

    def _find_inside(
        self, folder: str, inside: int, listing: "_Listing", found: Found
    ) -> set[str]:
        """Add a tenant's states to *found*; return the files that they consist of."""
        kept: set[str] = set()
        for files in listing.manifests.values():
            for file in files:
                manifest = self._manifest(folder, inside, file)
                if manifest is None:
                    continue
                rows = self._rows(folder, manifest, listing)
                if rows is not None:
                    found.states.append((manifest, FileName(folder, file)))
                    found.rows.update(rows)
                    kept |= {file, *(name.file for name in rows.values())}
                    break
            else:
                found.unreadable += 1
        return kept

    def _manifest(self, folder: str, inside: int, file: str) -> Manifest | None:
        try:
            data = read_file(inside, file)
            end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
            whose = self._sealer.open("", file, data[_LENGTH_BYTES:end])
            tenant = bytes(whose).decode()
            manifest = decode_manifest(self._sealer.open(tenant, file, data[end:]))
        except (OSError, StateCorrupt, UnicodeDecodeError):
            return None
        name = self._sealer.name(tenant, manifest.key)
        if tenant_of(manifest.key) != tenant or not file.startswith(f"{name}."):
            return None
        return manifest if self._sealer.name(tenant, "") == folder else None

    def _rows(
        self, folder: str, manifest: Manifest, listing: "_Listing"
    ) -> dict[Place, FileName] | None:
        """Return the files of all segments, or None if one of them isn't there."""
        rows: dict[Place, FileName] = {}
        for place in places_of(manifest):
            file = listing.rows.get(self._sealer.name(*place))
            if file is None:
                return None
            rows[place] = FileName(folder, file)
        return rows


def _touch(inside: int, file: str) -> None:
    """Note the use of a state, for the next process to know their order.

    Left to itself, the kernel notes times in steps of milliseconds.
    """
    now_ns = time.time_ns()
    with contextlib.suppress(OSError):  # a wrong order is no reason to fail
        os.utime(file, ns=(now_ns, now_ns), dir_fd=inside, follow_symlinks=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """The files of a tenant: manifests by digest, the latest first; segments."""

    files: set[str]
    manifests: dict[str, list[str]]
    rows: dict[str, str]
    highest: int

    @classmethod
    def of(cls, inside: int) -> "_Listing":
        files: set[str] = set()
        numbered: list[tuple[int, str, str, str]] = []
        for file in os.listdir(inside):
            match = _NAME.fullmatch(file.removesuffix(PART))
            if match is None:
                continue  # not ours
            files.add(file)
            if not file.endswith(PART):
                digest, number, kind = match.groups()
                numbered.append((int(number, 16), kind, digest, file))
        numbered.sort(reverse=True)
        manifests: dict[str, list[str]] = {}
        rows: dict[str, str] = {}
        for _, kind, digest, file in numbered:
            if kind == _STATE:
                manifests.setdefault(digest, []).append(file)
            else:
                rows.setdefault(digest, file)
        highest = numbered[0][0] if numbered else 0
        return cls(files=files, manifests=manifests, rows=rows, highest=highest)
