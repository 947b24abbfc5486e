"""What is remembered sample by sample, and what it says of turns to come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.scheduler import (
    CallId,
    DecodeDone,
    PrefillStarted,
    Session,
    SessionClosed,
    SessionId,
    ToolEnded,
    ToolStarted,
    TurnAdmitted,
    TurnSubmitted,
)
from kvalet.scheduler.events import Event, PrefillDone
from kvalet.scheduler.history import History


def live(
    history: History,
    name: str,
    turns: int,
    *,
    queue_s: float = 0.0,
    tool_s: float = 1.0,
    status: str = "ok",
) -> None:
    """Let a session have *turns*, each behind a queue and before a tool, and close."""
    session = Session(id=SessionId(name))
    now_s = 0.0

    def happen(event: Event) -> None:
        history.hear(session, event)
        session.apply(event)

    for _ in range(turns):
        happen(
            TurnSubmitted(
                at_s=now_s,
                session=session.id,
                prompt_tokens=9,
                prefix_tokens=session.kv_tokens,
                max_output_tokens=1,
            )
        )
        now_s += queue_s
        session.apply(
            TurnAdmitted(at_s=now_s, session=session.id, slot=0, forced=False)
        )
        happen(PrefillStarted(at_s=now_s, session=session.id, slot=0))
        now_s += 1
        happen(
            PrefillDone(
                at_s=now_s,
                session=session.id,
                computed_tokens=9,
                reused_tokens=0,
                expected_tokens=0,
            )
        )
        happen(DecodeDone(at_s=now_s, session=session.id, output_tokens=1, kv_tokens=9))
        call = CallId("c")
        happen(ToolStarted(at_s=now_s, session=session.id, call=call, tool="Bash"))
        now_s += tool_s
        happen(
            ToolEnded(
                at_s=now_s,
                session=session.id,
                call=call,
                tool="Bash",
                seconds=tool_s,
                status=status,
            )
        )
    happen(SessionClosed(at_s=now_s, session=session.id))


def test_gaps_queues_and_calls_are_what_they_took() -> None:
    """Three turns have two gaps between them, three queues and three calls."""
    history = History()
    live(history, "a", 3, queue_s=0.5, tool_s=2.0)
    assert list(history.gaps_s) == [2.0, 2.0]
    assert list(history.queues_s) == [0.5] * 3
    assert list(history.calls_s) == [2.0] * 3
    assert list(history.tool_calls_s("Bash", "other")) == [2.0] * 3
    assert list(history.tool_calls_s("Read", "other")) == []


def test_cancelled_calls_do_not_count() -> None:
    """How long a call would have taken is not known of one that was cancelled."""
    history = History()
    live(history, "a", 3, status="cancelled")
    assert not history.calls_s


def test_only_the_last_hundred_are_remembered() -> None:
    """The window of gaps and queues holds a hundred, the newest last."""
    history = History()
    live(history, "a", 150, tool_s=1.0)
    live(history, "b", 31, tool_s=2.0)
    assert list(history.gaps_s) == [1.0] * 70 + [2.0] * 30


def test_arrival_is_the_order_of_first_turns() -> None:
    """Who came first has the smaller place; one that is not known has the largest."""
    history = History()
    sessions = [Session(id=SessionId(name)) for name in "ab"]
    for session in sessions:
        history.hear(
            session,
            TurnSubmitted(
                at_s=0.0,
                session=session.id,
                prompt_tokens=1,
                prefix_tokens=0,
                max_output_tokens=1,
            ),
        )
    stranger = Session(id=SessionId("c"))
    assert [history.arrival(each) for each in (*sessions, stranger)] == [0, 1, 2]


def test_sessions_of_one_length_tell_all() -> None:
    """Where every session has four turns, those that were had tell the rest."""
    history = History()
    for name in "abc":
        live(history, name, 4)
    assert history.memoryfulness == pytest.approx(1.0)


def test_nothing_is_told_before_sessions_have_ended() -> None:
    """A single turn, or none, correlates with nothing."""
    history = History()
    assert history.memoryfulness == 0.0
    live(history, "a", 1)
    assert history.memoryfulness == 0.0


@given(st.lists(st.integers(1, 12), min_size=2, max_size=8))
def test_memoryfulness_is_the_correlation_of_all_turns(lengths: list[int]) -> None:
    """The running sums give what all pairs of turns had and left would."""
    history = History()
    for place, turns in enumerate(lengths):
        live(history, f"s{place}", turns)
    pairs = [(k, n - k) for n in lengths for k in range(1, n + 1)]
    expected = min(max(-_correlation(pairs), 0.0), 1.0)
    assert history.memoryfulness == pytest.approx(expected, abs=1e-9)


def _correlation(pairs: list[tuple[int, int]]) -> float:
    had = sum(pair[0] for pair in pairs) / len(pairs)
    left = sum(pair[1] for pair in pairs) / len(pairs)
    both = sum((x - had) * (y - left) for x, y in pairs)
    scale = sum((x - had) ** 2 for x, _ in pairs) * sum(
        (y - left) ** 2 for _, y in pairs
    )
    return both / scale**0.5 if scale else 0.0
