"""What of the server's stream can be passed on, and what has to be asked for again."""

from kvalet.backends import Chunk, FinishReason, Request, Sampling
from kvalet.backends.llama.client import Event
from kvalet.backends.llama.transcript import Transcript, continuation, first_chunk

STOPPING = Sampling(stop=("END",))


def told(*events: Event) -> Transcript:
    """Return a transcript of *events*."""
    transcript = Transcript()
    for event in events:
        transcript.add(event)
    return transcript


def token(number: int, text: str, sampled: int) -> Event:
    """Return the event of one token, the last of *sampled*."""
    return Event(tokens=(number,), content=text, tokens_predicted=sampled)


def end(stop_type: str, sampled: int) -> Event:
    """Return a last event."""
    return Event(stop=True, stop_type=stop_type, tokens_predicted=sampled)


def test_tokens_are_passed_on_as_they_come() -> None:
    """Without a gap every chunk has its ids."""
    transcript = Transcript()
    chunk = transcript.add(token(5, "a", 1))
    assert chunk == Chunk(token_ids=(5,), text="a")
    assert transcript.missing == 0


def test_after_a_gap_only_text_is_passed_on() -> None:
    """Ids must come in order, so all from the gap on wait for the end."""
    transcript = told(token(5, "a", 1))
    assert transcript.add(token(7, "é", 3)) == Chunk(token_ids=(), text="é")
    assert transcript.add(token(8, "b", 4)) == Chunk(token_ids=(), text="b")
    assert (transcript.missing, transcript.last_id) == (3, 8)


def test_a_token_without_an_event_of_its_own_at_the_end() -> None:
    """The last id is unknown if more was sampled than the last event had."""
    transcript = told(token(5, "a", 1), end("limit", 2))
    assert (transcript.missing, transcript.last_id) == (1, None)


def test_withheld_text_is_that_after_the_last_text() -> None:
    """The end token has no text to withhold, and a found stop string is no text."""
    events = (token(1, "a", 1), token(2, "", 2), token(3, "", 3))
    assert told(*events, end("limit", 3)).withheld((1, 2, 3)) == (2, 3)
    assert told(*events, end("eos", 3)).withheld((1, 2, 3)) == (2,)
    assert told(*events, end("word", 3)).withheld((1, 2, 3)) == ()


def test_the_first_token_of_a_turn() -> None:
    """It is finished if it ends the turn or is all that there is room for."""
    going_on = told(token(5, "a", 1), end("limit", 1))
    ended = told(token(2, "", 1), end("eos", 1))
    assert first_chunk(going_on, 9, Sampling()) == Chunk(token_ids=(5,), text="a")
    last = Chunk(token_ids=(5,), text="a", finish=FinishReason.LENGTH)
    assert first_chunk(going_on, 1, Sampling()) == last
    stopped = Chunk(token_ids=(2,), text="", finish=FinishReason.STOP)
    assert first_chunk(ended, 9, STOPPING) == stopped


def test_a_first_token_that_decode_has_to_ask_for() -> None:
    """An unknown id, or a possible beginning of a stop string, is no first token."""
    assert first_chunk(told(end("limit", 1)), 9, Sampling()) is None
    held_back = told(token(5, "", 1), end("limit", 1))
    assert first_chunk(held_back, 9, STOPPING) is None
    assert first_chunk(held_back, 9, Sampling()) is not None


def test_the_continuation_of_a_turn() -> None:
    """It has the first token in its prompt, one less to sample and another seed."""
    request = Request(prompt=[1], max_tokens=9, sampling=Sampling(seed=3))
    following, left = continuation(request, 9, Chunk(token_ids=(5,), text="a"))
    assert (tuple(following.prompt), left) == ((1, 5), 8)
    assert following.sampling.seed == 4
    assert continuation(request, 9, None) == (request, 9)
