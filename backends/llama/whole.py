"""Slot files that nobody can cut into rows: parked as they are, in chunks by content.

Nothing is known of such a file but what the engine said when it wrote it, and that it
reads its own. So it goes back only to the same build, with as many slots, complete.
"""

from collections.abc import Iterator, Sequence

from ...state_store import KVState, Payload
from ...state_store.chunks import split
from ..errors import ImportRefused
from .layout import Cut
from .slot_file import (
    VERSION,
    BadSlotFile,
    listing_bytes,
    parse_token_ids,
    version_of,
)


class WholeLayout:
    """Implements ``Layout`` for files of *version*, None if they have no known one."""

    exports_rows = False

    def __init__(self, *, version: int | None, streams: int) -> None:
        self._version = version
        self._streams = streams

    @property
    def name(self) -> str:
        """The version, and how many slots the engine has."""
        version = "unknown" if self._version is None else self._version
        # llama.cpp loads a file only into as many streams as it was saved from.
        return f"llama-slot-file/{version};whole;streams={self._streams}"

    def cut(self, data: Payload, token_ids: Sequence[int], first_token: int) -> Cut:
        """Cut the file into chunks, of which only all together are of use."""
        if first_token:
            raise BadSlotFile(
                f"nothing can be left out of it, not the tokens before {first_token}"
            )
        self._check(data, token_ids)
        chunks = split(data)
        ends = [*[0] * (len(chunks) - 1), len(token_ids)]
        return Cut(head=b"", ends=ends, payloads=chunks)

    def pieces(
        self, state: KVState, token_ids: Sequence[int], slot: int
    ) -> Iterator[Payload]:
        """Return the chunks; raise ImportRefused."""
        try:
            self._check(
                _leading(state.payloads, listing_bytes(len(token_ids))), token_ids
            )
        except BadSlotFile as error:
            raise ImportRefused(
                f"state {state.manifest.key!r} can't be used: {error}"
            ) from error
        return iter(state.payloads)

    def _check(self, data: Payload, token_ids: Sequence[int]) -> None:
        version = version_of(data)
        if version != self._version:
            raise BadSlotFile(f"the slot file has version {version} here")
        if version == VERSION and parse_token_ids(data).tolist() != list(token_ids):
            raise BadSlotFile(
                f"the slot file does not list the {len(token_ids)} tokens"
            )


def _leading(payloads: Sequence[Payload], length: int) -> bytes:
    leading = bytearray()
    for payload in payloads:
        leading += payload[: length - len(leading)]
        if len(leading) == length:
            break
    return bytes(leading)
