"""Parents and children: whose copy a fork begins from, and who waits for whom."""

import itertools

import msgspec
import pytest

from kvalet.scheduler import (
    CallId,
    CopyLost,
    CostModel,
    InvalidSetting,
    LatencyModel,
    Outlook,
    Residency,
    Session,
    SessionId,
    SessionOpened,
    ToolStarted,
    TurnSubmitted,
    parse_policy,
)

from .carrier import Carrier


def session(carrier: Carrier, name: str) -> Session:
    return carrier.scheduler.session(SessionId(name))


def loan(carrier: Carrier, name: str) -> tuple[str | None, int]:
    """Return whose copy a session is parked in, and how long that is."""
    found = session(carrier, name)
    assert (found.source is not None) == (found.residency is Residency.PARKED)
    return found.source, found.held_tokens


def with_a_parked_parent() -> Carrier:
    """Return a carrier whose "a" is in a tool call, 24 tokens of it in the store."""
    carrier = Carrier(policy=parse_policy("park"), slots=2)
    carrier.open("a")
    carrier.run("a", 20)
    carrier.tool("a")
    carrier.finish(0)
    assert session(carrier, "a").residency is Residency.PARKED
    return carrier


# ---- what is lent --------------------------------------------------------------------


def test_a_fork_is_parked_in_its_parents_copy() -> None:
    """Its restore names the copy's owner; what is then resident is its own."""
    carrier = with_a_parked_parent()
    carrier.open("b", "a", 25)
    assert loan(carrier, "b") == ("a", 24)
    carrier.submit("b", 35, 25)
    [restore] = carrier.plans[-1].restore
    assert (restore.session, restore.source, restore.kv_tokens) == ("b", "a", 24)
    carrier.finish(restore.slot)
    child = session(carrier, "b")
    assert (child.residency, child.source) == (Residency.RESIDENT, None)
    assert (child.copied_tokens, child.kv_tokens) == (0, 24)


def test_a_fork_of_what_was_never_copied_has_nothing() -> None:
    """It is absent, until its parent has been copied: then it is lent the copy."""
    carrier = Carrier(policy=parse_policy("park"), slots=1)
    carrier.open("a")
    carrier.run("a", 20)
    carrier.tool("a")
    carrier.open("b", "a", 25)
    carrier.submit("b", 35, 25)
    assert session(carrier, "b").residency is Residency.ABSENT
    carrier.finish(0)
    assert session(carrier, "b").residency is Residency.RESTORING
    assert session(carrier, "b").source == "a"


def test_a_copy_longer_than_what_is_shared_is_not_lent() -> None:
    """The state is loaded as a whole, and its end would be another's."""
    carrier = with_a_parked_parent()
    carrier.open("b", "a", 23)
    assert session(carrier, "b").residency is Residency.ABSENT


def test_a_loan_ends_when_the_copy_grows_beyond_it() -> None:
    """The parent goes on and is parked again: its fork computes its prompt."""
    carrier = with_a_parked_parent()
    carrier.open("b", "a", 25)
    carrier.end_tool("a")
    carrier.run("a", 30)
    assert loan(carrier, "b") == ("a", 24)
    carrier.tool("a", "second")
    carrier.drain()
    assert session(carrier, "a").copied_tokens == 34
    assert loan(carrier, "b") == (None, 0)


@pytest.mark.parametrize("how", ["lost", "closed", "edited"])
def test_a_loan_ends_with_the_copy(how: str) -> None:
    """Whatever becomes of the lender's copy, its forks hear of it at once."""
    carrier = with_a_parked_parent()
    carrier.open("b", "a", 25)
    carrier.open("c", "b", 25)
    assert loan(carrier, "c") == ("a", 24)
    if how == "lost":
        carrier.apply(CopyLost(at_s=0, session=SessionId("a")))
    elif how == "closed":
        carrier.close("a")
    else:
        carrier.submit("a", 30, 0)
    assert loan(carrier, "b") == loan(carrier, "c") == (None, 0)


def test_a_borrowers_end_leaves_the_copy() -> None:
    """Only the lender's copy exists, and closing a fork forgets nothing of it."""
    carrier = with_a_parked_parent()
    carrier.open("b", "a", 25)
    carrier.close("b")
    assert not any(plan.forget for plan in carrier.plans)
    carrier.close("a")
    assert [lost.session for plan in carrier.plans for lost in plan.forget] == ["a"]


def test_a_fork_that_shares_nothing_any_more_gives_its_loan_back() -> None:
    """A first prompt that keeps nothing of the conversation restores nothing."""
    carrier = with_a_parked_parent()
    carrier.open("b", "a", 25)
    carrier.submit("b", 35, 0)
    assert not any(plan.restore or plan.forget for plan in carrier.plans)
    assert session(carrier, "b").residency is Residency.ABSENT


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("forked_tokens", -1, "cannot begin with -1 tokens"),
        ("weight", 0.0, "must be positive and finite, not 0.0"),
        ("weight", float("nan"), "must be positive and finite, not nan"),
        ("priority", 0.5, "must be an integer, not 0.5"),
    ],
)
def test_a_session_that_makes_no_sense_is_not_opened(
    field: str, value: float, sentence: str
) -> None:
    """A sentence says why, and its name stays free."""
    carrier = Carrier(policy=parse_policy("park"))
    opened = SessionOpened(at_s=0, session=SessionId("a"))
    with pytest.raises(InvalidSetting, match=sentence):
        carrier.apply(msgspec.structs.replace(opened, **{field: value}))
    carrier.open("a")


# ---- who waits for whom --------------------------------------------------------------


def test_children_are_counted_while_both_are_open() -> None:
    """Either side may close first; a parent that nobody knows is none."""
    carrier = Carrier(policy=parse_policy("keep"))
    carrier.open("a")
    carrier.open("b", "a")
    carrier.open("c", "a")
    carrier.open("orphan", "nobody")
    assert session(carrier, "a").live_children == 2
    carrier.close("b")
    assert session(carrier, "a").live_children == 1
    carrier.close("a")
    carrier.open("a")
    carrier.close("c")
    carrier.close("orphan")
    assert session(carrier, "a").live_children == 0


def outlook() -> Outlook:
    return Outlook(latency=LatencyModel(), cost=CostModel(), bytes_per_token=10)


def call(of: Session, expected_s: float, call: str = "c") -> None:
    """Begin a tool call at 0 s that is going to take so long."""
    of.apply(
        ToolStarted(
            at_s=0, session=of.id, call=CallId(call), tool="T", expected_s=expected_s
        )
    )


def family(*names: str) -> list[Session]:
    """Return sessions of which each is the parent of the next."""
    sessions = [Session(id=SessionId(name)) for name in names]
    for parent, child in itertools.pairwise(sessions):
        parent.children[child.id] = child
    return sessions


def test_a_parent_waits_for_its_childs_tools() -> None:
    """A call of 5 s is not over before the subagent's tool of 60 s is."""
    parent, child = family("a", "b")
    call(parent, 5)
    assert outlook().remaining_s(parent, 1) == 4
    call(child, 60)
    assert outlook().remaining_s(parent, 1) == 59
    assert outlook().returns_within(parent, 1, 100) == 0


def test_a_parent_waits_for_its_childs_prompt() -> None:
    """A child with 3,000 tokens to compute has more to do than one with none."""
    parent, child = family("a", "b")
    call(parent, 0)
    assert outlook().remaining_s(parent, 0) == 0
    child.apply(
        TurnSubmitted(
            at_s=0,
            session=child.id,
            prompt_tokens=3000,
            prefix_tokens=0,
            max_output_tokens=1,
        )
    )
    expected = outlook().prefill_s(3000)
    assert outlook().remaining_s(parent, 0) == expected > 0


def test_only_blocking_children_are_waited_for() -> None:
    """One that runs beside its parent delays nothing."""
    parent, child = family("a", "b")
    child.blocking = False
    call(parent, 5)
    call(child, 60)
    assert outlook().remaining_s(parent, 1) == 4
    assert outlook().returns_within(parent, 1, 100) == 1


def test_a_parent_without_a_call_waits_for_nobody() -> None:
    """Its next turn comes when its user wants it, whatever its children do."""
    parent, child = family("a", "b")
    alone = outlook().remaining_s(parent, 1)
    call(child, 1e6)
    assert outlook().remaining_s(parent, 1) == alone
    assert not parent.awaits_child


def test_the_subagents_of_subagents_count_down_to_a_depth() -> None:
    """Four generations are looked at; a thousand break nothing."""
    sessions = family(*(str(number) for number in range(1000)))
    for number, each in enumerate(sessions):
        call(each, number)
    assert outlook().remaining_s(sessions[0], 0) == 4
