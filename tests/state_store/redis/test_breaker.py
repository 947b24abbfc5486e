"""The breaker alone, in a time of its own."""

from hypothesis import given
from hypothesis import strategies as st

from kvalet.state_store.redis.breaker import FIRST_WAIT_S, LONGEST_WAIT_S, Breaker

failures = st.lists(st.sampled_from(["slow", "refused", "worked"]), max_size=20)


@given(failures)
def test_it_opens_when_refused_or_slow_in_a_row(history: list[str]) -> None:
    """One refusal opens it, or two slow answers with none in time between them."""
    breaker, is_open, slow = Breaker(slow_in_a_row=2), False, 0
    for event in history:
        if event == "worked":
            breaker.worked()
            slow = 0
        else:
            breaker.failed(0.0, at_once=event == "refused")
            slow += 1
            is_open = is_open or event == "refused" or slow >= 2
        assert breaker.is_open == is_open


@given(st.lists(st.integers(0, 60), max_size=20))
def test_it_waits_longer_each_time_up_to_a_limit(delays_s: list[int]) -> None:
    """The wait doubles with each probe that fails, from 0.25 s to 10 s."""
    breaker, now_s, expected_s = Breaker(), 0.0, FIRST_WAIT_S
    breaker.failed(now_s, at_once=True)
    for delay_s in delays_s:
        assert breaker.wait_s(now_s) == expected_s
        now_s += expected_s + delay_s
        assert breaker.wait_s(now_s) == 0
        breaker.probed(now_s, works=False)
        expected_s = min(LONGEST_WAIT_S, 2 * expected_s)


def test_failures_while_open_do_not_put_off_the_probe() -> None:
    """Calls that were in progress may fail late; the probe is when it was to be."""
    breaker = Breaker()
    breaker.failed(0.0, at_once=True)
    breaker.failed(0.2, at_once=True)
    assert breaker.wait_s(0.2) == 0.25 - 0.2


def test_it_starts_anew_after_it_closed() -> None:
    """What went wrong before a probe that found it working counts no more."""
    breaker = Breaker()
    breaker.failed(0.0, at_once=True)
    breaker.probed(0.25, works=False)
    breaker.probed(0.75, works=True)
    assert not breaker.is_open
    breaker.failed(1.0, at_once=False)
    assert not breaker.is_open
    breaker.failed(1.0, at_once=True)
    assert breaker.wait_s(1.0) == FIRST_WAIT_S
