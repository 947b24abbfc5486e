"""oracle and unlimited: the two that only a replay can have."""

from kvalet.scheduler import parse_policy

from .stage import carrier_of, into_a_tool, resident


def test_whoever_returns_last_makes_room() -> None:
    """The true remaining wait decides, not how long somebody has waited."""
    carrier = carrier_of("oracle")
    into_a_tool(carrier, "a", expected_s=10)
    carrier.wait(5)
    into_a_tool(carrier, "b", expected_s=60)
    carrier.open("c")
    carrier.submit("c")
    assert [copy.session for copy in carrier.plans[-1].copy] == ["b"]
    while carrier.busy:
        carrier.finish(min(carrier.busy))
    assert resident(carrier, "abc") == "ac"


def test_the_link_copies_whoever_returns_last() -> None:
    """Who would make room first is copied first, ahead of any need."""
    carrier = carrier_of("oracle", slots=3)
    into_a_tool(carrier, "a", expected_s=10)
    into_a_tool(carrier, "b", expected_s=60)
    carrier.wait(1)
    carrier.open("c")
    carrier.submit("c")
    copies = [copy.session for plan in carrier.plans for copy in plan.copy]
    assert copies[-1] == "b"


def test_their_traits_tell_the_replay() -> None:
    """Only the oracle is told how long tools take, only unlimited gets all memory."""
    names = ("auto", "continuum", "infercept", "keep", "oracle", "thunder", "unlimited")
    traits = {name: parse_policy(name).traits for name in names}
    assert [name for name in names if traits[name].clairvoyant] == ["oracle"]
    assert [name for name in names if traits[name].unlimited] == ["unlimited"]


def test_unlimited_never_lets_anything_go() -> None:
    """It keeps state for however long a tool takes."""
    carrier = carrier_of("unlimited")
    into_a_tool(carrier, "a")
    carrier.wait(10_000)
    assert resident(carrier, "a") == "a"
