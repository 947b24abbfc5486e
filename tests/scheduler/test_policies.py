"""What each policy does to a session whose tool runs, and when memory is needed."""

import pytest

from kvalet.scheduler import (
    InvalidSetting,
    Residency,
    SchedulerSettings,
    SessionId,
    parse_policy,
)

from .carrier import Carrier


def residency(carrier: Carrier, name: str) -> Residency:
    return carrier.scheduler.session(SessionId(name)).residency


def in_a_tool(policy: str, slots: int = 2) -> Carrier:
    """Return a carrier whose session "a" has had a turn and is in a tool call."""
    carrier = Carrier(policy=parse_policy(policy), slots=slots)
    carrier.open("a")
    carrier.run("a", 20)
    carrier.tool("a")
    return carrier


def test_keep_moves_nothing_while_nobody_needs_it() -> None:
    """keep leaves state where it is, however long the tool takes."""
    carrier = in_a_tool("keep")
    carrier.wait(10_000)
    assert residency(carrier, "a") is Residency.RESIDENT
    assert not any(plan.copy or plan.release for plan in carrier.plans)


def test_keep_drops_the_least_recently_used() -> None:
    """When memory is needed, whoever has waited longest loses its state, uncopied."""
    carrier = in_a_tool("keep")
    for name in ("b", "c"):
        carrier.open(name)
        carrier.run(name, 20)
    assert residency(carrier, "a") is Residency.ABSENT
    assert residency(carrier, "b") is Residency.RESIDENT
    assert not any(plan.copy for plan in carrier.plans)


def test_drop_lets_go_at_once() -> None:
    """drop releases when the tool starts, and never copies."""
    carrier = in_a_tool("drop")
    assert residency(carrier, "a") is Residency.ABSENT
    assert not any(plan.copy for plan in carrier.plans)


def test_park_copies_then_releases() -> None:
    """park copies when the tool starts and releases when the copy is there."""
    carrier = in_a_tool("park")
    assert residency(carrier, "a") is Residency.PARKING
    carrier.finish(0)
    assert residency(carrier, "a") is Residency.PARKED
    assert carrier.plans[-1].release[0].kept_tokens == 24


def test_parked_state_comes_back_before_the_prefill() -> None:
    """A returning turn is restored first, and starts when that has ended."""
    carrier = in_a_tool("park")
    carrier.finish(0)
    carrier.end_tool("a")
    carrier.submit("a", prompt=40, prefix=24)
    plan = carrier.plans[-1]
    assert (len(plan.restore), len(plan.start)) == (1, 0)
    carrier.finish(0)
    assert len(carrier.plans[-1].start) == 1


def test_a_tool_that_ends_during_the_copy_keeps_its_state() -> None:
    """The copy is not wasted, but nothing is released: the turn is about to come."""
    carrier = in_a_tool("park")
    carrier.end_tool("a")
    carrier.finish(0)
    assert residency(carrier, "a") is Residency.RESIDENT
    assert carrier.scheduler.session(SessionId("a")).clean


def test_clean_state_is_released_without_a_second_copy() -> None:
    """What the store holds already is not copied again."""
    carrier = in_a_tool("park")
    carrier.end_tool("a")
    carrier.finish(0)
    copies = sum(len(plan.copy) for plan in carrier.plans)
    carrier.tool("a", "c2")
    assert residency(carrier, "a") is Residency.PARKED
    assert copies == sum(len(plan.copy) for plan in carrier.plans) == 1


def test_hold_waits_before_it_parks() -> None:
    """hold:2 touches nothing for two seconds, then parks."""
    carrier = in_a_tool("hold:2")
    assert carrier.plans[-1].wake_at_s == 2
    carrier.wait(1.9)
    assert residency(carrier, "a") is Residency.RESIDENT
    carrier.wait(0.1)
    assert residency(carrier, "a") is Residency.PARKING


def test_hold_spares_short_waits() -> None:
    """A tool that ends within the hold time moves nothing, nor does its timer later."""
    carrier = in_a_tool("hold:2")
    carrier.wait(1)
    carrier.end_tool("a")
    carrier.tool("a", "c2")
    carrier.wait(1.5)
    assert residency(carrier, "a") is Residency.RESIDENT
    carrier.wait(0.5)
    assert residency(carrier, "a") is Residency.PARKING


def test_a_failed_copy_keeps_what_nobody_needs() -> None:
    """Without need for the memory, state that can't be copied stays resident."""
    carrier = in_a_tool("park")
    carrier.fail(0)
    assert residency(carrier, "a") is Residency.RESIDENT
    assert not carrier.busy


def test_a_failed_copy_is_dropped_where_memory_is_needed() -> None:
    """If a turn waits for the memory, state that can't be copied is dropped."""
    carrier = Carrier(policy=parse_policy("hold:100"), slots=1)
    for name in ("a", "b"):
        carrier.open(name)
    carrier.run("a", 20)
    carrier.tool("a")
    carrier.submit("b")
    assert residency(carrier, "a") is Residency.PARKING
    carrier.fail(0)
    assert residency(carrier, "a") is Residency.ABSENT
    assert len(carrier.plans[-1].start) == 1


def test_queued_holders_make_room_when_all_are_stuck() -> None:
    """Two sessions that hold memory and wait for more do not wait for ever."""
    carrier = Carrier(policy=parse_policy("park"), kv_tokens=100, slots=2)
    for name in ("a", "b"):
        carrier.open(name)
        carrier.run(name, 45)
    carrier.submit("a", prompt=80, prefix=49)
    carrier.submit("b", prompt=80, prefix=49)
    carrier.drain()
    assert all(
        carrier.scheduler.session(SessionId(name)).turn is None for name in ("a", "b")
    )


def test_a_turn_past_the_bound_takes_from_the_queue() -> None:
    """Past the age bound a new turn gets in, and is counted as forced."""
    carrier = Carrier(
        policy=parse_policy("keep"),
        slots=5,
        settings=SchedulerSettings(max_prefills=1, age_bound_s=10),
    )
    for name in ("a", "b", "c", "d", "e"):
        carrier.open(name)
    for name in ("a", "b", "d", "e"):
        carrier.run(name, 30)
    for name in ("a", "b", "d"):  # "a" runs, the others are let in
        carrier.submit(name, prompt=34, prefix=34)
    carrier.submit("c", prompt=60)
    carrier.submit("e", prompt=34, prefix=34)  # resident: goes first
    carrier.wait(11)
    carrier.drain()
    assert carrier.scheduler.forced_admissions == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lru", "unknown policy 'lru'; valid are auto, continuum"),
        ("", "unknown policy ''"),
        ("keep:2", "policy 'keep' takes no parameter, got '2'"),
        ("hold", "needs a hold time such as hold:2"),
        ("hold:-1", "policy 'hold:-1' needs a hold time"),
        ("hold:2h", "policy 'hold:2h' needs a hold time"),
    ],
)
def test_wrong_policies_get_a_sentence(text: str, sentence: str) -> None:
    """The sentence names what was written and what would be valid."""
    with pytest.raises(InvalidSetting) as raised:
        parse_policy(text)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("park", "park"),
        ("hold:0", "park"),
        ("hold:2", "hold:2"),
        ("hold:2s", "hold:2"),
        ("hold:1500ms", "hold:1.5"),
        ("hold:1m", "hold:60"),
        (" keep ", "keep"),
    ],
)
def test_names_are_normalised(text: str, name: str) -> None:
    """Durations may be written in the usual ways; the name says seconds."""
    assert parse_policy(text).name == name


def test_an_old_copy_is_forgotten_when_the_newer_one_fails() -> None:
    """A history replaced during a copy leaves nothing behind, even if that fails."""
    carrier = in_a_tool("park")
    carrier.end_tool("a")
    carrier.finish(0)
    carrier.run("a", 40)
    carrier.tool("a", "c2")  # copies the grown state
    carrier.end_tool("a", "c2")
    carrier.submit("a", prompt=5, prefix=0)
    assert not any(plan.forget for plan in carrier.plans)
    carrier.fail(0)
    assert [session.session for session in carrier.plans[-1].forget] == ["a"]
