"""A conversation that grows, and the states that are parked of it."""

from collections.abc import Sequence

from kvalet.state_store import Inventory, KVState, Manifest


class Talk:
    """Grows by turns; each turn's rows are one segment, of one byte per token."""

    def __init__(self, key: str, *turns: str) -> None:
        self.key = key
        self.turns = list(turns)

    @property
    def whole(self) -> KVState:
        """The state of all turns."""
        return self._state(self.turns, 0)

    @property
    def rest(self) -> KVState:
        """The rows of the last turn."""
        return self._state(self.turns, sum(map(len, self.turns[:-1])))

    def say(self, text: str) -> KVState:
        """Add a turn and return its rows."""
        self.turns.append(text)
        return self.rest

    def _state(self, turns: Sequence[str], first_token: int) -> KVState:
        payloads: list[bytes] = []
        ends: list[int] = []
        end = 0
        for turn in turns:
            end += len(turn)
            if end > first_token:
                payloads.append(turn.encode())
                ends.append(end)
        return KVState.seal_segments(
            key=self.key,
            model="model",
            engine="engine",
            layout="rows",
            token_ids=list(map(ord, "".join(turns))),
            ends=ends,
            payloads=payloads,
            first_token=first_token,
        )


class Listener:
    """An owner that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.moves: list[tuple[str, str]] = []
        self.worths_s: dict[str, float] = {}

    def lost(self, key: str) -> None:
        """Write it down."""
        self.heard.append(key)

    def moved(self, key: str, tier: str) -> None:
        """Write it down."""
        self.moves.append((key, tier))

    def worth_s(self, manifest: Manifest) -> float:
        """Return what it was told to."""
        return self.worths_s.get(manifest.key, 0.0)


async def keys_of(store: Inventory) -> list[str]:
    """Return the keys of everything that is parked."""
    keys = store.keys()
    return [key async for key in keys]
