"""Server-sent events, cut anywhere."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.runtime.wire.errors import EventTooLong
from kvalet.runtime.wire.events import SSEReader, event_data, event_name

STREAM = (
    b": hello\n\n"
    b'data: {"a":1}\n\n'
    b"event: ping\ndata: {}\n\n"
    b"event: two\r\ndata: x\r\ndata:  y\r\n\r\n"
    b"data:[DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_blocks_do_not_depend_on_the_cuts(cuts: list[int]) -> None:
    """However a stream is split, the blocks are the same, and together all of it."""
    edges = [0, *sorted(cuts), len(STREAM)]
    reader = SSEReader()
    blocks = [
        block
        for start, end in pairwise(edges)
        for block in reader.feed(STREAM[start:end])
    ]
    assert b"".join(blocks) + reader.rest == STREAM
    assert [(event_name(b), event_data(b)) for b in blocks] == [
        (b"", b""),
        (b"", b'{"a":1}'),
        (b"ping", b"{}"),
        (b"two", b"x\n y"),
        (b"", b"[DONE]"),
    ]


def test_what_is_no_block_yet_is_the_rest() -> None:
    """An event without its end is held back, not lost."""
    reader = SSEReader()
    assert reader.feed(b"data: 1\n\ndata: 2\n") == [b"data: 1\n\n"]
    assert reader.rest == b"data: 2\n"


def test_an_event_without_end_is_refused() -> None:
    """What is held of a stream is bounded."""
    reader = SSEReader(longest_bytes=100)
    with pytest.raises(EventTooLong, match="100 bytes"):
        for _ in range(20):
            reader.feed(b"data: 123")
