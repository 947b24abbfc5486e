"""From the server's events to chunks, and where a turn divides into two requests.

llama-server sends no event for a token that ends inside a UTF-8 character, so the ids
of such tokens are missing while their text arrives with a later token. From the first
gap on, chunks carry text only; the ids follow with the last chunk, in order.
"""

from dataclasses import replace

from ..backend import Chunk, FinishReason, Request, Sampling
from .client import Event


class Transcript:
    """What one completion has said so far."""

    def __init__(self) -> None:
        self.streamed_ids: list[int] = []
        self.text = ""
        self.sampled = 0
        self.last_id: int | None = None  # None: the last token was left out
        self.silent_from = 0  # tokens from here on have brought no text yet
        self.last = Event()

    def add(self, event: Event) -> Chunk:
        """Take in *event* and return what of it can be passed on at once."""
        if event.tokens_predicted > self.sampled:
            self.last_id = None
        self.last = event
        self.sampled = event.tokens_predicted
        known = len(self.streamed_ids) + len(event.tokens) == self.sampled
        if event.tokens:
            self.last_id = event.tokens[-1]
        if event.content:
            self.text += event.content
            self.silent_from = self.sampled
        ids = event.tokens if known else ()
        self.streamed_ids.extend(ids)
        return Chunk(token_ids=ids, text=event.content)

    @property
    def missing(self) -> int:
        """How many sampled tokens have not been passed on."""
        return self.sampled - len(self.streamed_ids)

    @property
    def finish(self) -> FinishReason:
        """Why the model stopped, by the last event."""
        stopped = self.last.stop_type in ("eos", "word")
        return FinishReason.STOP if stopped else FinishReason.LENGTH

    def withheld(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of all the turn's *token_ids* whose text was never sent.

        What looks like the start of a stop string waits for the rest of it, in vain
        when the turn ends for another reason.
        """
        if self.last.stop_type == "word":
            return ()
        end = len(token_ids) - (self.last.stop_type == "eos")
        return token_ids[self.silent_from : end]


def wants_stop_strings(sampling: Sampling) -> bool:
    """Return whether the server looks for stop strings at all."""
    return bool(sampling.stop) and not sampling.ignore_stop


def first_chunk(transcript: Transcript, room: int, sampling: Sampling) -> Chunk | None:
    """Return the first token, or None where the decode has to ask for it again."""
    if transcript.missing:
        return None
    finish: FinishReason | None = transcript.finish
    if finish is FinishReason.LENGTH:
        # A withheld text may be the start of a stop string, which only a request that
        # sees both ends can recognise.
        if not transcript.text and wants_stop_strings(sampling):
            return None
        finish = FinishReason.LENGTH if room == 1 else None
    ids = tuple(transcript.streamed_ids)
    return Chunk(token_ids=ids, text=transcript.text, finish=finish)


def continuation(
    request: Request, room: int, first: Chunk | None
) -> tuple[Request, int]:
    """Return the request that follows *first* and how much it may sample."""
    if first is None:
        return request, room
    sampling = request.sampling
    if sampling.seed is not None:
        # The server starts its generator anew; the same seed would draw alike twice.
        sampling = replace(sampling, seed=(sampling.seed + 1) & 0x7FFFFFFF)
    prompt = (*request.prompt, *first.token_ids)
    return replace(request, prompt=prompt, sampling=sampling), room - 1
