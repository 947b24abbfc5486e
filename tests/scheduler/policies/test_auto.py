"""auto: nothing moves unless somebody needs the memory, and then by price.

Where nothing was measured, the 24 tokens of a session cost 12 ms to copy, 12 ms to have
back, and 24 ms to compute again: 24 ms either way.
"""

from collections.abc import Callable

import pytest

from kvalet.scheduler import (
    CopyStarted,
    CostModel,
    Departure,
    Residency,
    SchedulerSettings,
    SessionClosed,
    SessionId,
    parse_policy,
)

from ..carrier import Carrier
from .stage import carrier_of, into_a_tool, resident


def copied(carrier: Carrier) -> str:
    """Return whose state was copied, or is, in the order of the copies."""
    return "".join(copy.session for plan in carrier.plans for copy in plan.copy)


def left(carrier: Carrier, names: str) -> str:
    """Let all copies end; return those of *names* that have left the accelerator."""
    while moves := [s for s, w in carrier.busy.items() if isinstance(w, CopyStarted)]:
        carrier.finish(moves[0])
    here = resident(carrier, names)
    return "".join(name for name in names if name not in here)


def ask(carrier: Carrier, name: str = "z", prompt: int = 20) -> None:
    """Let a new session submit a turn."""
    carrier.open(name)
    carrier.submit(name, prompt)


def priced(
    *, prefill_s: float, save_s: float, restore_s: float, slots: int = 1
) -> Carrier:
    """Return a carrier where computing or moving a token costs so much."""

    def costs() -> CostModel:
        model = CostModel()
        for tokens in (10, 100, 1000):
            model.observe_prefill(tokens, 0, prefill_s * tokens)
            model.observe_save(tokens, save_s * tokens, "host")
            model.observe_restore(tokens, restore_s * tokens, "host")
        return model

    return Carrier(
        policy=parse_policy("auto"),
        slots=slots,
        context_tokens=200,
        bytes_per_token=1,
        costs=costs,
        settings=SchedulerSettings(age_bound_s=1e6),
    )


# ---- who leaves ----------------------------------------------------------------------


def test_nobody_leaves_while_nothing_is_needed() -> None:
    """However long a tool takes, its session keeps its state, and nothing is due."""
    carrier = carrier_of("auto", slots=3)
    into_a_tool(carrier, "a", expected_s=1e6)
    into_a_tool(carrier, "b")
    carrier.wait(1e5)
    ask(carrier)  # there is a slot for it, and memory
    assert resident(carrier, "ab") == "ab"
    assert not any(plan.copy or plan.release for plan in carrier.plans)


@pytest.mark.parametrize(("expected_s", "leaves"), [(0.020, ""), (0.028, "a")])
def test_whoever_waits_longer_than_moving_costs_leaves(
    expected_s: float, leaves: str
) -> None:
    """Below 24 ms to go the new turn waits instead."""
    carrier = carrier_of("auto", slots=1)
    into_a_tool(carrier, "a", expected_s=expected_s)
    ask(carrier)
    assert left(carrier, "a") == leaves


@pytest.mark.parametrize(
    ("a", "b", "first"),
    [
        ((20, 100.0), (20, 200.0), "b"),
        ((20, 200.0), (20, 100.0), "a"),
        ((60, 100.0), (20, 100.0), "b"),  # 28 ms of copies instead of 64
        ((20, 100.0), (60, 100.0), "a"),
        ((20, 100.0), (60, 500.0), "b"),
        ((60, 200.0), (20, 100.0), "b"),  # twice the wait is not 64 / 24 of it
    ],
)
def test_the_longest_wait_for_its_cost_leaves_first(
    a: tuple[int, float], b: tuple[int, float], first: str
) -> None:
    """Who leaves frees a slot; one is enough, so only the first of the order goes."""
    carrier = carrier_of("auto", slots=2)
    into_a_tool(carrier, "a", a[0], expected_s=a[1])
    into_a_tool(carrier, "b", b[0], expected_s=b[1])
    ask(carrier)
    assert left(carrier, "ab") == first


def test_as_many_leave_as_are_needed() -> None:
    """In the same order, until the turn fits."""
    carrier = carrier_of("auto", slots=4, kv_tokens=100)
    for name, expected_s in (("a", 100.0), ("b", 300.0), ("c", 200.0)):
        into_a_tool(carrier, name, expected_s=expected_s)
    ask(carrier, prompt=65)
    assert left(carrier, "abc") == "bc"


@pytest.mark.parametrize(
    ("kept", "expected_s", "leaves"),
    [(False, 0.53, True), (True, 0.53, False), (True, 0.60, True)],
)
def test_the_line_of_the_link_makes_leaving_dearer(
    kept: bool, expected_s: float, leaves: bool
) -> None:
    """A move of 0.50 s behind a copy of which 0.06 s are left takes 0.56 s."""
    carrier = priced(prefill_s=1.0, save_s=0.005, restore_s=0.001, slots=3)
    into_a_tool(carrier, "a", 80, expected_s=expected_s)
    carrier.open("b")
    carrier.run("b", 20)
    carrier.apply(SessionClosed(at_s=carrier.now_s, session=SessionId("b"), kept=kept))
    ask(carrier, prompt=200 - 84 + 1)
    assert copied(carrier)[:1] == ("b" if kept else "a")
    departure = carrier.scheduler.session(SessionId("a")).departure
    assert (departure is Departure.PARK) is leaves


def test_what_follows_an_answer_is_waited_for() -> None:
    """For 50 ms nobody is sent away without a tool; then a user may take long."""
    carrier = carrier_of("auto", slots=1)
    carrier.open("a")
    carrier.run("a", 20)
    ask(carrier)
    carrier.wait(0.049)
    assert resident(carrier, "a") == "a" and not copied(carrier)
    wake_at_s = carrier.plans[-1].wake_at_s
    assert wake_at_s is not None
    carrier.wait(wake_at_s - carrier.now_s)
    carrier.wait(0.05)
    assert left(carrier, "a") == "a"


def test_what_follows_a_tool_is_waited_for() -> None:
    """The turn after a tool comes at once, mostly."""
    carrier = carrier_of("auto", slots=1)
    into_a_tool(carrier, "a")
    carrier.wait(100)
    carrier.end_tool("a")
    ask(carrier)
    assert resident(carrier, "a") == "a" and not copied(carrier)


# ---- where it is forced --------------------------------------------------------------


def test_the_reluctant_leave_only_when_it_is_forced() -> None:
    """Who is about to return stays until the new turn is past its age bound."""
    carrier = carrier_of("auto", slots=1, age_bound_s=10)
    into_a_tool(carrier, "a", expected_s=0.01)
    ask(carrier)
    carrier.wait(9.9)  # overdue, so it is expected at any moment
    assert left(carrier, "a") == ""
    carrier.wait(0.1)
    assert left(carrier, "a") == "a"
    assert not carrier.scheduler.session(SessionId("a")).active


def test_the_willing_leave_before_the_reluctant() -> None:
    """Force does not change who loses nothing."""
    carrier = carrier_of("auto", slots=2, age_bound_s=0)
    into_a_tool(carrier, "a", expected_s=0.01)
    into_a_tool(carrier, "b", expected_s=1e3)
    ask(carrier)
    assert left(carrier, "ab") == "b"


@pytest.mark.parametrize(("move_s", "active"), [(0.5, True), (2.0, False)])
def test_whoever_is_dear_to_bring_back_queues_for_it(
    move_s: float, active: bool
) -> None:
    """Who costs more than the time of a turn, here a second, comes back by the gate."""
    token_s = move_s / 2 / 24  # out, and back
    carrier = priced(prefill_s=10.0, save_s=token_s, restore_s=token_s)
    for second in range(300):
        carrier.scheduler.outlook.pace.admitted(24, second)
    carrier.now_s = 300.0
    into_a_tool(carrier, "a", expected_s=1e3)
    ask(carrier)
    assert left(carrier, "a") == "a"
    assert carrier.scheduler.session(SessionId("a")).active is active


# ---- park or drop --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefill_s", "move_s", "residency"),
    [
        (0.010, 0.001, Residency.PARKED),
        (0.001, 0.010, Residency.ABSENT),
        (0.010, 0.004, Residency.PARKED),  # both ways are below computing it again
        (0.010, 0.006, Residency.ABSENT),  # one way is, both are not
    ],
)
def test_state_leaves_by_the_cheaper_way(
    prefill_s: float, move_s: float, residency: Residency
) -> None:
    """Parked if copying it out and back costs less than computing it again."""
    carrier = priced(prefill_s=prefill_s, save_s=move_s, restore_s=move_s)
    into_a_tool(carrier, "a", expected_s=1e3)
    ask(carrier)
    assert left(carrier, "a") == "a"
    assert carrier.scheduler.session(SessionId("a")).residency is residency
    assert copied(carrier) == ("a" if residency is Residency.PARKED else "")


@pytest.mark.parametrize(
    ("kept", "departure"), [(False, Departure.PARK), (True, Departure.DROP)]
)
def test_computing_again_beats_a_long_line_of_copies(
    kept: bool, departure: Departure
) -> None:
    """0.54 s to compute it are more than 0.50 s to move it, but not than 0.56 s."""
    carrier = priced(prefill_s=0.0064, save_s=0.005, restore_s=0.001, slots=3)
    into_a_tool(carrier, "a", 80, expected_s=1e3)
    a = carrier.scheduler.session(SessionId("a"))
    carrier.open("b")
    carrier.run("b", 20)
    carrier.apply(SessionClosed(at_s=carrier.now_s, session=SessionId("b"), kept=kept))
    ask(carrier, prompt=200 - 84 + 1)
    left_by = Departure.DROP if a.residency is Residency.ABSENT else a.departure
    assert left_by is departure


# ---- copies behind -------------------------------------------------------------------


@pytest.mark.parametrize(("reserved", "copies"), [(79, ""), (81, "a")])
def test_copying_behind_begins_at_four_fifths_of_memory(
    reserved: int, copies: str
) -> None:
    """While the link has nothing to do; nobody leaves by it."""
    carrier = carrier_of("auto", slots=3, kv_tokens=100)
    into_a_tool(carrier, "a", expected_s=1e3)
    carrier.wait(1)
    ask(carrier, prompt=reserved - 24 - 5)
    assert carrier.scheduler.reserved_tokens == reserved
    assert copied(carrier) == copies
    assert left(carrier, "a") == ""


def shorter(carrier: Carrier) -> None:
    into_a_tool(carrier, "a", expected_s=10)
    into_a_tool(carrier, "b", expected_s=100)


def smaller(carrier: Carrier) -> None:
    into_a_tool(carrier, "a", 40, expected_s=100)
    into_a_tool(carrier, "b", 20, expected_s=100)


@pytest.mark.parametrize("fill", [shorter, smaller])
def test_whoever_would_leave_first_is_copied_first(
    fill: Callable[[Carrier], None],
) -> None:
    """Here "b": it waits for longer, or costs less."""
    carrier = carrier_of("auto", slots=4, kv_tokens=130)
    fill(carrier)
    carrier.wait(1)
    ask(carrier, prompt=130 - carrier.scheduler.reserved_tokens - 5)
    assert copied(carrier) == "b"


def test_who_was_copied_behind_leaves_at_once() -> None:
    """Its memory is free the moment it is wanted, without a transfer."""
    carrier = carrier_of("auto", slots=2, kv_tokens=100)
    into_a_tool(carrier, "a", expected_s=1e3)
    carrier.wait(1)
    ask(carrier, "y", prompt=70)
    carrier.drain()
    assert copied(carrier) == "a"
    carrier.tool("y", expected_s=0.001)
    ask(carrier, prompt=20)
    [released] = carrier.plans[-1].release
    assert (released.session, released.kept_tokens) == ("a", 24)
    assert copied(carrier) == "a"
