"""continuum: for how long it pins, by the paper and as released, and who goes first."""

import pytest

from kvalet.scheduler.history import History
from kvalet.scheduler.policies.continuum import (
    best_pin_s,
    paper_pin_s,
    released_pin_s,
)

from .stage import carrier_of, into_a_tool, resident, teach


def test_the_pin_is_the_best_of_the_durations_seen() -> None:
    """argmax of P(tau) gain - tau, by hand for a gain of 4."""
    seen_s = [0.1, 0.1, 2.0, 4.0]
    worth_s = {0.1: 0.5 * 4 - 0.1, 2.0: 0.75 * 4 - 2.0, 4.0: 4.0 - 4.0}
    assert best_pin_s(seen_s, gain_s=4.0) == max(worth_s, key=lambda s: worth_s[s])
    assert best_pin_s(seen_s, gain_s=20.0) == 4.0
    assert best_pin_s(seen_s, gain_s=0.1) == 0.0


def test_a_tool_with_too_few_calls_is_taken_for_any_tool() -> None:
    """Below 100 calls of the tool all tools count, and below 100 of those 2 seconds."""
    history = History()
    history.calls_s.extend([0.5] * 99)
    assert paper_pin_s([9.0] * 99, history, reload_s=100.0) == 2.0
    history.calls_s.append(0.5)
    assert paper_pin_s([9.0] * 99, history, reload_s=100.0) == 0.5
    assert paper_pin_s([9.0] * 100, history, reload_s=100.0) == 9.0


def test_the_queue_counts_as_far_as_turns_tell_what_is_left() -> None:
    """The gain is T eta + reload: nothing of the queue where nothing can be told."""
    history = History()
    history.queues_s.append(50.0)
    assert history.memoryfulness == 0.0
    assert paper_pin_s([9.0] * 100, history, reload_s=8.0) == 0.0


@pytest.mark.parametrize(
    ("seen_s", "pin_s"), [([], 2.0), ([1.0, 3.0], 2.0), ([1.0, 3.1], 0.0)]
)
def test_the_released_rule_is_two_seconds_or_nothing(
    seen_s: list[float], pin_s: float
) -> None:
    """Two seconds where the mean is at most that, or nothing is known of the tool."""
    assert released_pin_s(seen_s) == pin_s


@pytest.mark.parametrize("policy", ["continuum", "continuum:released"])
def test_a_pinned_session_is_not_evicted_for_a_new_one(policy: str) -> None:
    """Before anything is known, state is pinned for two seconds, then evicted."""
    carrier = carrier_of(policy, slots=1)
    into_a_tool(carrier, "a")
    carrier.open("b")
    carrier.submit("b")
    carrier.wait(1.9)
    assert resident(carrier, "ab") == "a"
    carrier.wait(0.2)
    assert (resident(carrier, "ab"), len(carrier.busy)) == ("", 1)


def test_a_slow_tool_is_not_pinned_as_released() -> None:
    """The mean of each tool's own calls decides."""
    carrier = carrier_of("continuum:released", slots=1)
    teach(carrier, 3, 60.0, tool="Task")
    into_a_tool(carrier, "a", tool="Task")
    carrier.open("b")
    carrier.submit("b")
    assert (resident(carrier, "ab"), len(carrier.busy)) == ("", 1)


def test_the_latest_arrived_is_unpinned_first() -> None:
    """Where nothing else goes on, the later session gives way to one that returns."""
    carrier = carrier_of("continuum", slots=3, kv_tokens=80)
    for name in "abc":
        into_a_tool(carrier, name)
    assert resident(carrier, "abc") == "abc"
    carrier.end_tool("a")
    carrier.submit("a", prompt=40, prefix=24)  # it has grown, and nothing is free
    assert resident(carrier, "abc") == "ab"
