"""How fast turns get in, and the waits that follow from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.scheduler.pace import Pace


def steady(gap_s: float, turns: int = 300, tokens: int = 1000) -> Pace:
    """Return the pace of *turns* that got in every *gap_s*."""
    pace = Pace()
    for turn in range(turns):
        pace.admitted(tokens, turn * gap_s)
    return pace


def test_one_turn_has_no_pace() -> None:
    """Until two turns got in nothing is known, and the shortest waits hold."""
    pace = Pace()
    assert (pace.turns_per_s, pace.turn_tokens) == (0, 0)
    pace.admitted(700, 5.0)
    assert (pace.turns_per_s, pace.turn_tokens) == (0, 700)
    assert pace.retry_s == 0.05
    assert pace.age_bound_s(1000, 0.0) == 30.0


def test_turns_per_second_are_one_over_the_gap() -> None:
    """Turns that get in every four seconds are a quarter of a turn a second."""
    pace = steady(4.0)
    assert pace.turns_per_s == pytest.approx(0.25)


def test_the_newest_turns_count_most() -> None:
    """Fourteen turns outweigh the hundreds before them, in gap and in size."""
    pace = steady(1.0, turns=300, tokens=1000)
    for turn in range(1, 15):
        pace.admitted(9000, 299 + turn * 9.0)
    assert 1 / pace.turns_per_s > 5.0
    assert pace.turn_tokens > 5000


def test_turns_at_one_time_divide_by_nothing() -> None:
    """A burst without any gap leaves the pace unknown instead of infinite."""
    pace = steady(0.0)
    assert pace.turns_per_s == 0
    assert pace.retry_s == 0.05


@pytest.mark.parametrize(
    ("gap_s", "retry_s"), [(0.1, 0.05), (0.2, 0.05), (2.0, 0.5), (400.0, 30.0)]
)
def test_a_choice_is_looked_at_again_four_times_a_turn(
    gap_s: float, retry_s: float
) -> None:
    """That is a quarter of the gap, within 50 milliseconds and half a minute."""
    assert steady(gap_s).retry_s == pytest.approx(retry_s, rel=1e-4)


@pytest.mark.parametrize(
    ("waiting", "move_s", "bound_s"),
    [
        (20, 0.0, 120.0),  # three rounds of 20 turns, two seconds each
        (20, 2.0, 120.0),
        (20, 4.0, 200.0),  # a move is a fiftieth of that
        (4, 0.1, 30.0),
        (0, 0.0, 30.0),
        (5000, 0.1, 3600.0),
        (1, 100.0, 3600.0),
    ],
)
def test_the_age_bound_is_three_rounds_or_fifty_moves(
    waiting: int, move_s: float, bound_s: float
) -> None:
    """The longer of the two holds, within half a minute and an hour."""
    assert steady(2.0).age_bound_s(waiting, move_s) == pytest.approx(bound_s, rel=1e-4)


@given(
    gaps_s=st.lists(st.floats(0, 1e6), max_size=30),
    waiting=st.integers(0, 10**6),
    move_s=st.floats(0, 1e6),
)
def test_bounds_hold_at_any_pace(
    gaps_s: list[float], waiting: int, move_s: float
) -> None:
    """Whatever came before, both waits stay in their bounds and the bound grows."""
    pace, now_s = Pace(), 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        pace.admitted(100, now_s)
    assert 0.05 <= pace.retry_s <= 30.0
    bound_s = pace.age_bound_s(waiting, move_s)
    assert 30.0 <= bound_s <= 3600.0
    assert bound_s <= pace.age_bound_s(waiting + 1, move_s)
    assert bound_s <= pace.age_bound_s(waiting, move_s + 1)
