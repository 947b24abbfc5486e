"""From the server's events to chunks, and which token ids the stream left out.

llama-server sends no event for a token that ends inside a UTF-8 character, so the ids
of such tokens are missing while their text arrives with a later token. From the first
gap on, chunks carry text only; the ids follow with the last chunk, in order.
"""

from ..backend import Chunk, FinishReason
from .client import Event


def finish_reason(event: Event) -> FinishReason:
    """Return why the model stopped, by the last event."""
    stopped = event.stop_type in ("eos", "word")
    return FinishReason.STOP if stopped else FinishReason.LENGTH


class Transcript:
    """What one completion has said so far."""

    def __init__(self) -> None:
        self.streamed_ids: list[int] = []
        self.sampled = 0
        self.last_id: int | None = None
        self.silent_from = 0  # tokens from here on have brought no text yet

    def add(self, event: Event) -> Chunk:
        """Take in *event* and return what of it can be passed on at once."""
        if event.tokens_predicted > self.sampled:
            self.last_id = None
        self.sampled = event.tokens_predicted
        known = len(self.streamed_ids) + len(event.tokens) == self.sampled
        if event.tokens:
            self.last_id = event.tokens[-1]
        if event.content:
            self.silent_from = self.sampled
        ids = event.tokens if known else ()
        self.streamed_ids.extend(ids)
        return Chunk(token_ids=ids, text=event.content)

    @property
    def missing(self) -> int:
        """How many sampled tokens have not been passed on."""
        return self.sampled - len(self.streamed_ids)
