"""What can be known of a model's answer while it passes by."""

from dataclasses import dataclass, field

from .json_values import is_object

_MOST_MS = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call that the model asks for; the legacy kind has its name for an id."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the server says of tokens; ``cached_tokens`` are among the prompt's."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """What llama.cpp says of its work: prompt_n, cache_n, prompt_ms, predicted_*."""

    computed_tokens: int
    reused_tokens: int
    prefill_s: float
    output_tokens: int
    decode_s: float


@dataclass(slots=True, eq=False)
class Seen:
    """What has been seen of an answer so far; readers of the APIs write in it."""

    choices: int = 1
    response_id: str | None = None
    pieces: int = 0
    answered: bool = False
    failed: bool = False
    ended: bool = False
    usage: Usage | None = None
    timings: Timings | None = None
    finished: dict[int, str] = field(default_factory=dict[int, str])
    calls: dict[str, Call] = field(default_factory=dict[str, Call])
    places: dict[str, str] = field(default_factory=dict[str, str])

    def call_seen(self, place: str, id: str, name: str) -> None:
        """Note a call, or more of one: only its first piece need have id and name.

        *place* is where in the answer it stands. Some servers put several calls in one
        place; their ids differ then.
        """
        key = id or self.places.get(place) or place
        self.places[place] = key
        known = self.calls.get(key)
        if known is None:
            self.calls[key] = Call(id=id, name=name)
        elif name and not known.name:
            self.calls[key] = Call(id=known.id, name=name)

    def timings_seen(self, value: object) -> None:
        """Note llama.cpp's timings, if *value* is that."""
        if not is_object(value):
            return
        self.timings = Timings(
            computed_tokens=whole(value.get("prompt_n")),
            reused_tokens=whole(value.get("cache_n")),
            prefill_s=_seconds(value.get("prompt_ms")),
            output_tokens=whole(value.get("predicted_n")),
            decode_s=_seconds(value.get("predicted_ms")),
        )


def whole(value: object) -> int:
    """Return *value* if it is a number of tokens, else 0."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return max(value, 0)


def text(value: object) -> str:
    """Return *value* if it is a text, else ""."""
    return value if isinstance(value, str) else ""


def _seconds(milliseconds: object) -> float:
    if isinstance(milliseconds, float):
        return max(milliseconds / 1000, 0.0)
    return min(whole(milliseconds), _MOST_MS) / 1000
