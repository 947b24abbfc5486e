"""thunder: when its gate is open, and who is paused."""

from kvalet.scheduler import SessionId

from .stage import carrier_of, into_a_tool, resident


def test_the_smallest_is_paused_first() -> None:
    """Whoever has least to compute again makes room, however short it has waited."""
    carrier = carrier_of("thunder")
    into_a_tool(carrier, "a", prompt=50)
    carrier.wait(60)
    into_a_tool(carrier, "b", prompt=20)
    carrier.wait(60)
    carrier.open("c")
    carrier.submit("c")
    assert resident(carrier, "abc") == "a"
    assert not carrier.scheduler.session(SessionId("b")).active


def test_the_gate_opens_as_waiting_state_decays() -> None:
    """Half a second later 150 waiting tokens leave room for 80 below 190."""
    carrier = carrier_of("thunder", slots=4)
    into_a_tool(carrier, "a", prompt=71)
    into_a_tool(carrier, "b", prompt=71)
    carrier.open("c")
    carrier.submit("c", prompt=75, output=5)
    carrier.wait(0.44)  # 150 / 2^0.44 = 110.6
    assert not carrier.busy
    carrier.wait(0.02)  # 150 / 2^0.46 = 109.0
    assert [work.session for work in carrier.busy.values()] == ["c"]


def test_a_gate_that_has_closed_opens_later() -> None:
    """Above 190 of 200 tokens it closes; it takes 160 to open it."""
    carrier = carrier_of("thunder", slots=4)
    for name in ("a", "b"):
        into_a_tool(carrier, name, prompt=88)
        carrier.wait(10)
    for name in ("a", "b"):
        carrier.end_tool(name)
        carrier.run(name, 93)
    carrier.open("c")
    carrier.submit("c", prompt=5, output=1)
    carrier.wait(0.2)  # 194 tokens that wait count for 169
    assert not carrier.busy
    carrier.wait(0.1)  # and now for 158
    assert [work.session for work in carrier.busy.values()] == ["c"]


def test_a_turn_above_the_threshold_gets_in_when_nothing_else_counts() -> None:
    """What would never fit below 0.95 of memory may have all of it."""
    carrier = carrier_of("thunder", slots=4, kv_tokens=100)
    into_a_tool(carrier, "a", prompt=50)
    carrier.open("b")
    carrier.submit("b", prompt=95, output=5)
    assert not carrier.busy
    carrier.wait(60)
    assert [work.session for work in carrier.busy.values()] == ["b"]


def test_with_a_tier_nobody_is_paused() -> None:
    """What went to the tier comes back as a returning session, not by the gate."""
    carrier = carrier_of("thunder:tier", slots=1)
    into_a_tool(carrier, "a")
    carrier.wait(60)
    carrier.open("b")
    carrier.submit("b")
    carrier.finish(0)
    assert [event.kept_tokens for event in carrier.plans[-1].release] == [24]
    assert carrier.scheduler.session(SessionId("a")).active
