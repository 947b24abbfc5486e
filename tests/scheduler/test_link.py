"""The line of transfers: who is next, how much at once, and how long it all takes."""

import pytest

from kvalet.scheduler import CopyLost, Departure, Residency, TurnAborted

from .yard import Yard, known_costs

# ---- who is next ---------------------------------------------------------------------


def test_restores_then_wanted_copies_then_copies_behind() -> None:
    """Whatever was wanted first; among equals it is the order of wanting."""
    yard = Yard(policy="auto", kv_tokens=1000)
    yard.resident("b", 700)  # memory is short
    yard.leaving("d", 100)
    yard.leaving("c", 100)
    yard.returning("s", 20)
    yard.returning("r", 20)
    assert yard.order() == "srdcb"


def test_a_restore_waits_for_the_transfer_that_runs() -> None:
    """What has begun is not overtaken, what has not is."""
    yard = Yard()
    yard.leaving("a", 100)
    yard.leaving("b", 100)
    assert yard.pump() == "a"
    yard.returning("r", 20)
    assert yard.pump() == ""
    yard.end("a")
    assert yard.pump() == "r"


@pytest.mark.parametrize("max_moves", [1, 2, 3])
def test_so_many_move_at_a_time_as_may(max_moves: int) -> None:
    """The next starts when one has ended, and until then nothing is due."""
    yard = Yard(max_moves=max_moves)
    for name in "abcd":
        yard.leaving(name, 100)
    assert yard.link.due
    assert yard.pump() == "abcd"[:max_moves]
    assert not yard.link.due
    assert yard.pump() == ""
    yard.end("a")
    assert yard.link.due
    assert yard.pump() == "abcd"[max_moves]


def test_it_is_idle_when_nothing_moves_and_nothing_is_wanted() -> None:
    """A transfer that runs is something, though nothing is due."""
    yard = Yard()
    assert yard.link.idle and not yard.link.due
    yard.leaving("a", 100)
    assert not yard.link.idle
    yard.pump()
    assert not yard.link.idle and not yard.link.due
    yard.end("a")
    assert yard.link.idle


# ---- what is wanted no more ----------------------------------------------------------


def test_a_copy_of_what_is_needed_again_is_not_made() -> None:
    """A turn that comes before the copy has begun keeps the state where it is."""
    yard = Yard()
    a = yard.leaving("a", 100)
    yard.leaving("b", 100)
    a.submit(120, prefix=100)
    assert yard.pump() == "b"
    assert a.session.residency is Residency.RESIDENT


def test_a_copy_of_what_is_copied_or_dropped_by_now_is_not_made() -> None:
    """It is wanted only for state that is to be parked and that the store lacks."""
    yard = Yard()
    clean, dropped = yard.leaving("a", 100), yard.leaving("b", 100)
    clean.copy()
    dropped.session.departure = Departure.DROP
    assert yard.pump() == ""
    assert yard.link.idle


def test_a_lost_copy_is_not_restored() -> None:
    """The turn can start at once, to compute it."""
    yard = Yard()
    a = yard.returning("a", 100)
    a.happen(CopyLost(at_s=0, session=a.session.id))
    assert yard.pump() == ""
    assert list(yard.books.startable) == [a.session]


def test_a_turn_that_was_given_up_is_not_restored() -> None:
    """Its slot has been given back; the next in line goes."""
    yard = Yard()
    a = yard.returning("a", 100)
    yard.returning("b", 100)
    a.happen(TurnAborted(at_s=0, session=a.session.id, reason="test"))
    a.release()
    yard.books.ledger.close(a.session.id)
    assert yard.pump() == "b"


# ---- slices --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "slices", "spans"),
    [
        (False, False, [(0, 100)]),
        (True, False, [(0, 100)]),
        (True, True, [(0, 25), (25, 50), (50, 75), (75, 100)]),
    ],
)
def test_only_what_exports_slices_is_copied_in_slices(
    rows: bool, slices: bool, spans: list[tuple[int, int]]
) -> None:
    """A copy of one second is cut into quarters; what cannot be cut goes whole."""
    yard = Yard(exports_rows=rows, exports_slices=slices)
    session = yard.leaving("a", 100).session
    made: list[tuple[int, int]] = []
    while not session.clean:
        copy = yard.copy()
        made.append((copy.first_token, copy.kv_tokens))
        yard.end("a", copy.kv_tokens)
        yard.link.want_copy(session)
    assert made == spans


@pytest.mark.parametrize(("rows", "first_token"), [(False, 0), (True, 60)])
def test_rows_that_the_store_has_are_not_copied_again(
    rows: bool, first_token: int
) -> None:
    """Where the backend cannot leave them out all is copied."""
    yard = Yard(exports_rows=rows)
    yard.leaving("a", 100, copied_tokens=60)
    copy = yard.copy()
    assert (copy.first_token, copy.kv_tokens) == (first_token, 100)


def test_a_short_copy_is_one_slice() -> None:
    """A third of a second is not worth a cut."""
    yard = Yard(exports_rows=True, exports_slices=True)
    yard.leaving("a", 33)
    assert yard.copy().kv_tokens == 33


def test_slices_leave_nothing_over() -> None:
    """Where it does not divide evenly each slice is rounded up, not one more made."""
    yard = Yard(exports_rows=True, exports_slices=True)
    yard.leaving("a", 74)  # three slices
    assert yard.copy().kv_tokens == 25


def test_a_restore_waits_for_a_slice_at_most() -> None:
    """What has been copied stays copied; the rest is copied after the restore."""
    yard = Yard(exports_rows=True, exports_slices=True)
    a = yard.leaving("a", 100)
    yard.end("a", yard.copy().kv_tokens)
    yard.returning("r", 20)
    yard.link.want_copy(a.session)
    assert yard.pump() == "r"
    yard.end("r")
    assert yard.copy().first_token == 25


# ---- how long it takes ---------------------------------------------------------------


def test_the_backlog_is_what_is_wanted_and_half_of_what_runs() -> None:
    """Of a transfer in progress half is left, in the mean."""
    yard = Yard()
    yard.leaving("a", 200)
    assert yard.link.backlog_s == pytest.approx(2.0)
    yard.leaving("b", 100)
    yard.returning("r", 300)
    assert yard.link.backlog_s == pytest.approx(6.0)
    yard.pump()  # "r"
    assert yard.link.backlog_s == pytest.approx(4.5)
    yard.end("r")
    yard.pump()  # "a"
    assert yard.link.backlog_s == pytest.approx(2.0)
    yard.end("a")
    yard.pump()
    yard.end("b")
    assert yard.link.backlog_s == 0


def test_a_copy_that_is_wanted_twice_counts_once() -> None:
    """It is made once as well."""
    yard = Yard()
    a = yard.leaving("a", 200)
    yard.link.want_copy(a.session)
    assert yard.link.backlog_s == pytest.approx(2.0)
    assert yard.order() == "a"


def test_only_what_the_store_lacks_counts() -> None:
    """Of a copy that exists only the rest is work."""
    yard = Yard(exports_rows=True)
    yard.leaving("a", 200, copied_tokens=150)
    assert yard.link.backlog_s == pytest.approx(0.5)


def test_a_restore_counts_by_the_tier_that_it_comes_from() -> None:
    """From a slow tier it takes longer, in the line and under way."""
    costs = known_costs()
    for nbytes in (100, 1000):
        costs.observe_restore(nbytes, nbytes / 10, "disk")
    yard = Yard(costs=costs)
    yard.returning("a", 100, "host")
    yard.returning("b", 100, "disk")
    assert yard.link.backlog_s == pytest.approx(11.0)
    yard.pump()
    yard.end("a")
    yard.pump()
    assert yard.link.backlog_s == pytest.approx(5.0)


def test_a_long_line_is_estimated_from_its_first() -> None:
    """A hundred and twenty-eight copies of a second are 128 seconds, by 64 of them."""
    yard = Yard(kv_tokens=100_000)
    for number in range(64):
        yard.leaving(f"a{number}", 100)
    for number in range(64):
        yard.leaving(f"b{number}", 50)
    assert yard.link.backlog_s == pytest.approx(128.0)


def test_it_knows_whose_memory_comes_free() -> None:
    """Those whose copy runs or is wanted, but nobody who stays."""
    yard = Yard(policy="auto", kv_tokens=500, max_moves=2)
    yard.resident("s", 300)
    yard.leaving("a", 100)
    b = yard.leaving("b", 50)
    assert [session.id for session in yard.link.leaving()] == ["a", "b"]
    assert yard.pump() == "ab"
    yard.end("b")
    assert yard.pump() == "s"  # a copy behind: its memory stays taken
    assert b.session.clean
    assert [session.id for session in yard.link.leaving()] == ["a"]


# ---- copies behind, restores ahead ---------------------------------------------------


def test_an_answer_of_nobody_holds_for_a_while() -> None:
    """The policy is not asked at every event whose state to copy behind."""
    yard = Yard(policy="auto", kv_tokens=100)
    assert yard.pump() == ""
    yard.resident("a", 90)
    yard.now_s = 0.04
    assert yard.pump() == ""
    yard.now_s = 0.06
    assert yard.pump() == "a"


def test_a_copy_behind_leaves_the_state_where_it_is() -> None:
    """Afterwards it is on both sides, and nothing is left to copy."""
    yard = Yard(policy="auto", kv_tokens=100)
    session = yard.resident("a", 90).session
    assert yard.order() == "a"
    assert session.residency is Residency.RESIDENT
    assert session.clean and session.departure is None


def test_a_restore_ahead_takes_memory_for_what_it_brings_back() -> None:
    """It has a slot from then on, and says that no turn has come yet."""
    yard = Yard()
    session = yard.parked("a", 100)
    yard.link.restore_ahead(session, yard.draft, 0)
    [restore] = yard.draft.restore
    assert (restore.ahead, restore.kv_tokens) == (True, 100)
    assert yard.books.ledger.held_tokens(session.id) == 100
    assert session.residency is Residency.RESTORING
    assert yard.link.backlog_s == pytest.approx(0.5)
