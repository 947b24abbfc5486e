"""In which form an engine's slot files are parked, learned from one that it writes.

What a file looks like depends on the build, on the model and on what the engine chose
for it when it started, so nobody is asked but the engine: right after its start it
saves a slot with a few tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol

from ...state_store import KVState, Payload
from ..backend import Sampling
from ..errors import EngineLost, EngineStartError
from .client import LlamaClient, Refused
from .scratch import Scratch
from .slot_file import BadSlotFile, parse, version_of
from .threads import in_thread, removed

_TOKEN_IDS: Final = (0, 0, 0)  # every vocabulary has a token 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A file in pieces: which tokens are complete after each, and the file's head."""

    head: bytes
    ends: Sequence[int]
    payloads: Sequence[Payload] = field(repr=False)


class Layout(Protocol):
    """How slot files become segments, and segments a slot file."""

    @property
    def name(self) -> str:
        """What must agree before a state may be loaded, besides model and engine."""
        ...

    @property
    def exports_rows(self) -> bool:
        """Whether a leading part can be left out, or taken for itself."""
        ...

    def cut(self, data: Payload, token_ids: Sequence[int], first_token: int) -> Cut:
        """Cut up a file that begins with *token_ids*; raise BadSlotFile."""
        ...

    def pieces(
        self, state: KVState, token_ids: Sequence[int], slot: int
    ) -> Iterator[Payload]:
        """Return the file for *slot*, piece by piece; raise ImportRefused.

        The state is verified, and of this layout's name and these tokens. A piece is
        valid until the next one is asked for.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The layout, and a sentence for the user where it is not the best one."""

    layout: Layout
    note: str = ""


async def learn(client: LlamaClient, scratch: Scratch, slots: int) -> Learned:
    """Have a fresh engine save a slot, and look; raise EngineStartError."""
    path = scratch.new_path()
    async with removed(path):
        try:
            async with aclosing(
                client.complete(0, _TOKEN_IDS, 0, Sampling(ignore_stop=True))
            ) as events:
                async for _ in events:
                    pass
            await client.save(0, path.name)
            await client.erase(0)
            data = await in_thread(path.read_bytes)
        except (Refused, OSError) as error:
            return _whole(slots, f"no slot file could be saved: {error}", None)
        except EngineLost as error:
            raise EngineStartError(f"the engine does not work: {error}") from error
    return layout_of(data, slots)


def layout_of(data: Payload, slots: int) -> Learned:
    """Return how to park what an engine with so many slots saves as *data*."""
    # Both need numpy, which comes with the engine.
    from .rows import RowLayout

    try:
        file = parse(data)
    except BadSlotFile as error:
        return _whole(slots, str(error), version_of(data))
    if tuple(file.token_ids) != _TOKEN_IDS or file.streams != slots:
        sentence = f"the slot file is of {file.streams} streams and other tokens"
        return _whole(slots, sentence, version_of(data))
    return Learned(layout=RowLayout(file.shape, slots))


def _whole(slots: int, sentence: str, version: int | None) -> Learned:
    from .whole import WholeLayout

    return Learned(
        layout=WholeLayout(version=version, streams=slots),
        note=f"state is parked whole at every park, not only its new rows: {sentence}",
    )
