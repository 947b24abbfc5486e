"""Calls find the lanes that they belong to."""

from hypothesis import given
from hypothesis import strategies as st

from kvalet.runtime.gateway.kinship import Kin, Kinship, Match
from kvalet.runtime.wire.lineage import Lineage, lineage


def call(*messages: str, head: str = "agent") -> Lineage:
    """Return the lineage of a call with these messages."""
    return lineage(head.encode(), [message.encode() for message in messages])


def found(match: Match[str]) -> tuple[Kinship, str | None, int]:
    """Return a match as a tuple."""
    return match.kinship, match.lane, match.shared


def main_lane() -> Kin[str]:
    """Return a session whose main lane waits for a tool."""
    kin = Kin[str]()
    kin.called("main", call("task"))
    kin.waits("main", True)
    return kin


def test_the_first_call_is_new() -> None:
    """Where there is no lane, a call gets one."""
    assert found(Kin[str]().match(call("task"))) == (Kinship.NEW, None, 0)


def test_results_continue_their_lane() -> None:
    """A call that has the lane's whole past goes on in it, waiting or not."""
    kin = main_lane()
    after = call("task", "use", "result")
    assert found(kin.match(after)) == (Kinship.CONTINUES, "main", 2)
    kin.called("main", after)
    more = call("task", "use", "result", "use", "result")
    assert found(kin.match(more)) == (Kinship.CONTINUES, "main", 4)


def test_a_retry_is_known() -> None:
    """The same call again is the lane's, whatever state that is in."""
    assert found(main_lane().match(call("task"))) == (Kinship.REPEATS, "main", 2)


def test_side_calls_leave_the_main_lane_alone() -> None:
    """A title, a classifier, a subagent: whatever begins otherwise has its own lane."""
    kin = main_lane()
    assert kin.match(call("task", head="titles")).kinship is Kinship.NEW
    assert kin.match(call("another task")).kinship is Kinship.NEW
    side = call("task", "summarise so far")
    assert kin.match(side).kinship is Kinship.CONTINUES  # no one can tell yet
    kin.called("main", call("task", "use", "result"))
    kin.waits("main", True)
    assert kin.match(side).kinship is Kinship.NEW


def test_an_edit_goes_to_the_lane_that_it_changes() -> None:
    """A lane that waits for nothing is edited; one that waits only by its results."""
    kin = Kin[str]()
    kin.called("main", call("task", "a", "b", "c"))
    edit = call("task", "a", "x")
    assert found(kin.match(edit)) == (Kinship.EDITS, "main", 3)
    kin.waits("main", True)
    assert kin.match(edit).kinship is Kinship.NEW
    assert found(kin.match(edit, brings_results=True)) == (Kinship.EDITS, "main", 3)
    kin.waits("main", False)
    assert kin.match(edit).kinship is Kinship.EDITS


def test_a_compacted_call_replaces_the_longest_lane() -> None:
    """A summary shares nothing but the head, and is still the same agent's."""
    kin = main_lane()
    kin.called("main", call("task", *"abcdef"))
    kin.called("side", call("title"))
    summary = call("summary of all")
    assert kin.match(summary).kinship is Kinship.NEW
    assert found(kin.match(summary, compacted=True)) == (Kinship.EDITS, "main", 1)


def test_the_longest_past_wins() -> None:
    """Of two lanes that a call continues it goes on in the longer one."""
    kin = Kin[str]()
    kin.called("parent", call("task"))
    kin.called("fork", call("task", "a", "b"))
    assert kin.match(call("task", "a", "b", "c")).lane == "fork"
    assert kin.match(call("task", "x")).lane == "parent"
    kin.forget("fork")
    kin.forget("fork")
    assert kin.match(call("task", "a", "b", "c")).lane == "parent"
    assert len(kin) == 1


def test_a_head_is_no_past() -> None:
    """A call without messages is no lane's, and no other call goes on from it."""
    kin = Kin[str]()
    kin.called("bare", call())
    assert kin.match(call()).kinship is Kinship.NEW
    assert kin.match(call("task")).kinship is Kinship.NEW


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.lists(st.sampled_from("ab"), min_size=1, max_size=4)
        ),
        max_size=12,
    ),
    st.lists(st.sampled_from("ab"), max_size=5),
)
def test_the_index_finds_what_a_search_does(
    calls: list[tuple[int, list[str]]], last: list[str]
) -> None:
    """However lanes have moved, the index knows the longest past of a call."""
    kin = Kin[int]()
    pasts: dict[int, list[str]] = {}
    for lane, messages in calls:
        kin.called(lane, call(*messages))
        pasts[lane] = messages
    match = kin.match(call(*last))
    lengths = [len(past) for past in pasts.values() if past == last[: len(past)]]
    if lengths:
        assert match.lane is not None
        assert len(pasts[match.lane]) == max(lengths)
        assert match.shared == max(lengths) + 1
    else:
        assert match.kinship in (Kinship.EDITS, Kinship.NEW)
    for lane in range(4):
        kin.forget(lane)
    assert found_nothing(kin.match(call(*last)))


def found_nothing(match: Match[int]) -> bool:
    """Return whether a call is new."""
    return match.kinship is Kinship.NEW and match.lane is None
