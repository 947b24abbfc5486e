"""progress-ttl: what it pins, for how long, and whom it lets in beside that."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.scheduler import SessionId, SessionOpened
from kvalet.scheduler.policies.progress_ttl import Lognormal

from .stage import carrier_of, into_a_tool, resident, teach

GRID_S = [0.05 * 640 ** (step / 31) for step in range(32)]


def test_the_fit_is_of_logarithms() -> None:
    """Gaps of 1 and e² seconds have a mean logarithm of 1, and a deviation of 1."""
    law = Lognormal.fit([1.0, math.exp(2)])
    assert (law.mean, law.deviation) == pytest.approx((1.0, 1.0))


def test_the_utility_is_the_published_one() -> None:
    """U(T) = C F(T) - E[gap; gap <= T] - T (1 - F(T)), by hand for ln gap ~ N(0, 1).

    F(1) is one half. The mean of all gaps is e^0.5 = 1.64872, of which gaps of up to a
    second contribute the share that is normal below -1, 0.158655.
    """
    law = Lognormal(mean=0.0, deviation=1.0)
    expected_s = 4 * 0.5 - 1.64872 * 0.158655 - 1 * 0.5
    assert law.utility_s(1.0, cost_s=4.0) == pytest.approx(expected_s, rel=1e-4)


@given(
    mean=st.floats(-3, 4), deviation=st.floats(0.05, 3), cost_s=st.floats(0.001, 1_000)
)
def test_no_other_time_of_the_grid_is_worth_more(
    mean: float, deviation: float, cost_s: float
) -> None:
    """The time is the best of the grid, at most C, and 0 where none is worth it."""
    law = Lognormal(mean=mean, deviation=deviation)
    worth_s = {ttl_s: law.utility_s(ttl_s, cost_s=cost_s) for ttl_s in GRID_S}
    best_s = max(worth_s, key=lambda ttl_s: worth_s[ttl_s])
    found_s = law.best_ttl_s(cost_s)
    if worth_s[best_s] <= 0:
        assert found_s == 0
    else:
        assert found_s <= cost_s
        assert found_s == pytest.approx(min(best_s, cost_s))


def test_equal_gaps_have_a_law() -> None:
    """A hundred gaps of the same length are pinned for just that, if it pays."""
    law = Lognormal.fit([2.0] * 100)
    assert 2.0 <= law.best_ttl_s(100.0) < 2.6
    assert law.best_ttl_s(1.0) == 0.0


@pytest.mark.parametrize(("gaps", "who"), [(99, "b"), (100, "a")])
def test_nothing_is_pinned_before_a_hundred_gaps(gaps: int, who: str) -> None:
    """The hundredth gap makes the difference between evicting and letting wait."""
    carrier = carrier_of("progress-ttl", slots=1)
    teach(carrier, gaps, 0.01)
    into_a_tool(carrier, "a", prompt=90)
    carrier.open("b")
    carrier.submit("b")
    while carrier.busy:
        carrier.finish(0)
    assert resident(carrier, "ab") == who


def test_after_its_time_state_is_evicted() -> None:
    """All gaps took 0.01 s: state is pinned for the shortest time there is, 0.05 s."""
    carrier = carrier_of("progress-ttl", slots=1)
    teach(carrier, 100, 0.01)
    into_a_tool(carrier, "a", prompt=90)
    carrier.open("b")
    carrier.submit("b")
    carrier.wait(0.049)
    assert resident(carrier, "ab") == "a"
    carrier.wait(0.002)
    assert (resident(carrier, "ab"), len(carrier.busy)) == ("", 1)


def test_pins_give_way_to_a_turn_past_its_bound() -> None:
    """Where one that is older than the bound is overtaken, a pinned session goes."""
    carrier = carrier_of("progress-ttl", slots=1, age_bound_s=0.02)
    teach(carrier, 100, 0.01)
    into_a_tool(carrier, "a", prompt=90)
    carrier.open("b")
    carrier.submit("b")
    first = SessionOpened(at_s=carrier.now_s, session=SessionId("c"), priority=1)
    carrier.apply(first)
    carrier.submit("c")
    assert resident(carrier, "a") == "a"
    carrier.wait(0.03)
    assert [work.session for work in carrier.busy.values()] == ["b"]


def test_what_was_pinned_in_an_earlier_wait_is_not_in_this_one() -> None:
    """A pin ends with its wait, however early that ends."""
    carrier = carrier_of("progress-ttl", slots=1)
    teach(carrier, 100, 0.01)
    into_a_tool(carrier, "a", prompt=90)
    carrier.end_tool("a")
    carrier.wait(0.01)
    carrier.run("a", 94)
    carrier.open("b")
    carrier.submit("b")
    assert (resident(carrier, "ab"), len(carrier.busy)) == ("", 1)


def test_the_tier_keeps_what_is_evicted() -> None:
    """With :tier state is copied before it is released."""
    carrier = carrier_of("progress-ttl:tier", slots=1)
    into_a_tool(carrier, "a")
    carrier.open("b")
    carrier.submit("b")
    carrier.finish(0)
    assert [event.kept_tokens for event in carrier.plans[-1].release] == [24]


def test_the_tier_copies_while_the_link_is_idle() -> None:
    """With :tier whoever waits is copied behind the work of the others."""
    carrier = carrier_of("progress-ttl:tier")
    into_a_tool(carrier, "a")
    carrier.wait(1)
    carrier.open("b")
    carrier.submit("b")
    assert [copy.session for copy in carrier.plans[-1].copy] == ["a"]
