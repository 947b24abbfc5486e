"""infercept: which way wastes least, when state leaves by it, and who leaves first.

Of 24 tokens a millisecond each to compute and half of one to move, keeping wastes as
much as a swap after 24 ms, and as discarding after 12 ms if nobody runs: while they are
computed they hold half of their memory in the mean.
"""

import pytest

from kvalet.scheduler import Residency, SessionId

from .stage import carrier_of, into_a_tool, resident


def test_discarding_is_least_waste_where_nobody_runs() -> None:
    """State is dropped when keeping it has wasted what computing it again would."""
    carrier = carrier_of("infercept")
    into_a_tool(carrier, "a")
    assert carrier.plans[-1].wake_at_s == pytest.approx(0.012)
    carrier.wait(0.011)
    assert resident(carrier, "a") == "a"
    carrier.wait(0.002)
    assert carrier.scheduler.session(SessionId("a")).residency is Residency.ABSENT


def test_swapping_is_least_waste_where_others_would_stand_by() -> None:
    """With 25 tokens running beside it, computing again would waste twice as much."""
    carrier = carrier_of("infercept")
    carrier.open("b")
    carrier.submit("b")
    carrier.open("a")
    carrier.submit("a")
    carrier.finish(0)  # "b" decodes, "a" prefills
    slot = carrier.scheduler.session(SessionId("a")).slot
    assert slot is not None
    carrier.finish(slot)
    carrier.finish(slot)
    carrier.tool("a")
    carrier.wait(0.023)
    assert resident(carrier, "a") == "a"
    carrier.wait(0.002)
    assert [copy.session for copy in carrier.plans[-1].copy] == ["a"]


def test_a_tool_that_ends_in_time_moves_nothing() -> None:
    """The choice is for the wait in which it was made."""
    carrier = carrier_of("infercept")
    into_a_tool(carrier, "a")
    carrier.wait(0.01)
    carrier.end_tool("a")
    carrier.wait(1)
    assert resident(carrier, "a") == "a"


def test_who_wastes_most_makes_room() -> None:
    """Of two that nothing is known about, the larger one that has waited goes first."""
    carrier = carrier_of("infercept", kv_tokens=130)
    for name, prompt in (("a", 20), ("b", 60)):
        carrier.open(name)
        carrier.run(name, prompt)
    carrier.wait(5)  # for the user: nothing falls due
    carrier.open("c")
    carrier.submit("c")
    assert resident(carrier, "abc") == "a"
