"""Encrypts what leaves the process: AES-256-GCM under keys of the user's.

A ring of keys is given, newest first. The first one seals, all of them open, so a key
is replaced by putting another before it. The last one names: names stay the same while
keys are added, and states are found again. When the last key is taken away, what was
sealed with it can't be opened any more, and the names change with it; what was parked
under the old ones is not found, and expires or is swept.

From each key of the ring, HKDF-SHA256 (RFC 5869) derives one per tenant, which seals,
and one more per tenant names, by HMAC-SHA256. A nonce is 96 random bits: a tenant may
have 2^32 pieces sealed under one key before two nonces are alike with a probability of
2^-33 (NIST SP 800-38D, 8.3); with 1 MiB pieces that is 4 PiB. The lengths show.

A sealed piece:

    1 byte    version, 1
    1 byte    length of the key's id
              the key's id, ASCII
    12 bytes  nonce
              ciphertext, and 16 bytes of tag

The tag also covers all before the nonce, the tenant and the label.
"""

import hmac
import re
import secrets
from base64 import b64decode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from .errors import StateCorrupt, StoreUnusable
from .room import make_room
from .state import Payload

VARIABLE: Final = "KVALET_STORE_KEYS"
"""The environment variable that holds the keys."""
KEY_BYTES: Final = 32

_VERSION: Final = 1
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
# What is handed to the library at once: it does not let others run meanwhile.
_PIECE_BYTES: Final = 1 << 20
_MOST_TENANTS: Final = 4096
# An id is shorter than any key written down, so a key is never taken for one.
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,16}")
_ID_RULE: Final = "1 to 16 letters, digits and ._-"


class AesGcmSealer:
    """Implements ``Sealer`` with *keys* by id, newest first; may be used by threads.

    Raises StoreUnusable where a key is of the wrong length, or the library missing.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        if not keys:
            raise StoreUnusable("encrypting needs at least one key")
        for key_id, key in keys.items():
            if not _ID.fullmatch(key_id):
                raise StoreUnusable(f"the id of a store key has {_ID_RULE}")
            if len(key) != KEY_BYTES:
                raise StoreUnusable(
                    f"store key {key_id!r} has {len(key)} bytes; AES-256 takes "
                    f"{KEY_BYTES}"
                )
        self._keys = dict(keys)
        self._key_id, *_, self._naming_id = *keys, *keys
        self._library = _Library()
        # Instance by instance: a cache that outlives the sealer would keep its keys.
        self._derived = lru_cache(_MOST_TENANTS)(self._derive)

    def __repr__(self) -> str:
        """Return which keys there are, and nothing of them."""
        return f"AesGcmSealer(key_ids={list(self._keys)})"

    @property
    def key_id(self) -> str:
        """Which key seals now."""
        return self._key_id

    def name(self, tenant: str, text: str) -> str:
        """Return 32 hex digits that stand for *text* of *tenant*."""
        key = self._derived(self._naming_id, "name", tenant)
        return hmac.digest(key, text.encode(), "sha256")[:16].hex()

    def seal(self, tenant: str, label: str, data: Payload) -> Payload:
        """Return *data* encrypted; it opens only under the same tenant and label."""
        key_id = self._key_id.encode()
        head = bytes([_VERSION, len(key_id)]) + key_id
        nonce = secrets.token_bytes(_NONCE_BYTES)
        start = len(head) + _NONCE_BYTES
        end = start + len(data)
        room = make_room(end + _TAG_BYTES)
        room[:start] = head + nonce
        work = self._library.encryptor(
            self._derived(self._key_id, "seal", tenant), nonce
        )
        work.authenticate_additional_data(_context(head, tenant, label))
        _run(work, memoryview(data), room[start:])
        work.finalize()
        room[end:] = work.tag
        return room.toreadonly()

    def open(self, tenant: str, label: str, data: Payload) -> Payload:
        """Return what was sealed; raise StateCorrupt if that was something else."""
        sealed = memoryview(data)
        head = bytes(sealed[: 2 + (sealed[1] if len(sealed) > 1 else 0)])
        start = len(head) + _NONCE_BYTES
        end = len(sealed) - _TAG_BYTES
        if end < start or head[0] != _VERSION:
            raise StateCorrupt(
                f"a sealed piece of {len(sealed)} bytes is cut short, or none of ours"
            )
        nonce = bytes(sealed[len(head) : start])
        work = self._library.decryptor(
            self._derived(self._known(head[2:]), "seal", tenant), nonce
        )
        work.authenticate_additional_data(_context(head, tenant, label))
        # The library wants space for a block more than it writes.
        room = make_room(end - start + _TAG_BYTES)
        _run(work, sealed[start:end], room)
        try:
            work.finalize_with_tag(bytes(sealed[end:]))
        except self._library.InvalidTag:
            raise StateCorrupt(
                "a sealed piece was changed, or belongs to another tenant or place"
            ) from None
        return room[: end - start].toreadonly()

    def _known(self, packed: bytes) -> str:
        """Return the id in a head; raise StateCorrupt unless its key is here."""
        key_id = packed.decode("ascii", "replace")
        if not _ID.fullmatch(key_id):
            raise StateCorrupt("a sealed piece has a damaged head")
        if key_id not in self._keys:
            raise StateCorrupt(
                f"a piece was sealed with key {key_id!r}, which is not among those "
                f"given"
            )
        return key_id

    def _derive(self, key_id: str, purpose: str, tenant: str) -> bytes:
        return self._library.derive(
            self._keys[key_id], f"kvalet {purpose} 1\0{tenant}".encode()
        )


def keys_from_environment(text: str) -> dict[str, bytes]:
    """Return the keys that *text* lists as ``ID:BASE64,ID:BASE64``, newest first.

    Raises StoreUnusable with a sentence in which nothing of the text shows.

        >>> keys_from_environment("2026a:" + "A" * 43 + "=") == {"2026a": bytes(32)}
        True
    """
    keys: dict[str, bytes] = {}
    for number, entry in enumerate(text.split(","), 1):
        key_id, colon, encoded = entry.strip().partition(":")
        if not colon or not _ID.fullmatch(key_id):
            raise _wrong(
                number, f"begins with no id ({_ID_RULE}) and colon: write ID:BASE64"
            )
        if key_id in keys:
            raise _wrong(number, "has the id of one before it")
        try:
            key = b64decode(encoded, validate=True)
        except ValueError:
            raise _wrong(number, "is not base64 behind its colon") from None
        if len(key) != KEY_BYTES:
            raise _wrong(
                number,
                f"has a key of {len(key)} bytes; AES-256 takes {KEY_BYTES}, such as "
                f"head -c {KEY_BYTES} /dev/urandom | base64 prints",
            )
        keys[key_id] = key
    return keys


def _wrong(number: int, what: str) -> StoreUnusable:
    return StoreUnusable(f"entry {number} of {VARIABLE} {what}")


def _context(head: bytes, tenant: str, label: str) -> bytes:
    """Return what the tag covers besides the data: no two of them read alike."""
    packed = tenant.encode()
    return head + len(packed).to_bytes(4, "little") + packed + label.encode()


def _run(work: Any, data: memoryview, room: memoryview) -> None:
    for start in range(0, len(data), _PIECE_BYTES):
        work.update_into(data[start : start + _PIECE_BYTES], room[start:])


class _Library:
    """The parts of ``cryptography`` that are used here, and nowhere else."""

    def __init__(self) -> None:
        try:
            from cryptography import exceptions
            from cryptography.hazmat.primitives import ciphers, hashes
            from cryptography.hazmat.primitives.ciphers import algorithms, modes
            from cryptography.hazmat.primitives.kdf import hkdf
        except ImportError:
            raise StoreUnusable(
                "encrypting parked state needs an extra: pip install 'kvalet[crypto]'"
            ) from None
        self.InvalidTag = exceptions.InvalidTag
        self._cipher, self._aes, self._gcm = ciphers.Cipher, algorithms.AES, modes.GCM
        self._hkdf, self._sha256 = hkdf.HKDF, hashes.SHA256

    def encryptor(self, key: bytes, nonce: bytes) -> Any:
        return self._cipher(self._aes(key), self._gcm(nonce)).encryptor()

    def decryptor(self, key: bytes, nonce: bytes) -> Any:
        return self._cipher(self._aes(key), self._gcm(nonce)).decryptor()

    def derive(self, key: bytes, purpose: bytes) -> bytes:
        kdf = self._hkdf(
            algorithm=self._sha256(), length=KEY_BYTES, salt=None, info=purpose
        )
        return kdf.derive(key)
