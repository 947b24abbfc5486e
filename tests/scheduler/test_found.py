"""State that outlives its session, and state that is found for a new one."""

import pytest

from kvalet.scheduler import (
    Capacity,
    CopyForgotten,
    CopyFound,
    CopyLost,
    CopyMoved,
    CopyStarted,
    IllegalMove,
    Released,
    Residency,
    Scheduler,
    Session,
    SessionClosed,
    SessionId,
    TurnAborted,
    TurnAdmitted,
    TurnSubmitted,
    UnknownSession,
    parse_policy,
)

from .carrier import Carrier

A = SessionId("a")


def find(carrier: Carrier, tokens: int = 50) -> Session:
    """Let the store have a state of "a", and return the session."""
    carrier.apply(CopyFound(at_s=carrier.now_s, session=A, kv_tokens=tokens))
    return carrier.scheduler.session(A)


def close(carrier: Carrier, *, kept: bool) -> None:
    carrier.apply(SessionClosed(at_s=carrier.now_s, session=A, kept=kept))


def opened(policy: str = "keep", slots: int = 2) -> Carrier:
    carrier = Carrier(policy=parse_policy(policy), slots=slots)
    carrier.open("a")
    return carrier


def with_state(policy: str = "keep") -> Carrier:
    """Return a carrier whose "a" has 24 tokens on the accelerator."""
    carrier = opened(policy)
    carrier.run("a", 20)
    return carrier


def copies(carrier: Carrier) -> list[CopyStarted]:
    return [copy for plan in carrier.plans for copy in plan.copy]


def releases(carrier: Carrier) -> list[Released]:
    return [released for plan in carrier.plans for released in plan.release]


def forgotten(carrier: Carrier) -> list[CopyForgotten]:
    return [forget for plan in carrier.plans for forget in plan.forget]


def gone(carrier: Carrier) -> bool:
    """Whether "a" has left nothing in the books."""
    with pytest.raises(UnknownSession):
        carrier.scheduler.session(A)
    return (carrier.scheduler.sessions, carrier.scheduler.reserved_tokens) == (0, 0)


# ---- found ---------------------------------------------------------------------------


def test_a_found_copy_is_a_parked_state() -> None:
    """All of it is in the store, nothing on the accelerator, and nothing is done."""
    carrier = opened()
    session = find(carrier, 50)
    assert session.residency is Residency.PARKED
    assert session.held_tokens == session.kv_tokens == session.copied_tokens == 50
    assert session.clean and session.slot is None
    assert carrier.plans[-1].empty
    assert carrier.scheduler.reserved_tokens == 0


def test_a_found_copy_is_restored_like_any_other() -> None:
    """The first turn waits for the restore and computes only what follows."""
    carrier = opened()
    session = find(carrier, 50)
    carrier.submit("a", prompt=60, prefix=50)
    plan = carrier.plans[-1]
    [restore] = plan.restore
    assert (restore.kv_tokens, restore.ahead, restore.source) == (50, False, None)
    assert not plan.start
    carrier.finish(restore.slot)
    assert session.reusable_tokens == 50
    assert [start.session for start in carrier.plans[-1].start] == ["a"]
    carrier.drain()
    assert session.held_tokens == 60
    assert session.dirty_tokens == 10


def test_a_found_copy_that_cannot_be_restored_is_computed() -> None:
    """It counts as lost, and the turn runs all the same."""
    carrier = opened()
    session = find(carrier, 50)
    carrier.submit("a", prompt=60, prefix=50)
    carrier.fail(0)
    assert session.reusable_tokens == 0
    assert len(carrier.plans[-1].start) == 1


def test_a_found_copy_that_shares_nothing_is_forgotten() -> None:
    """A prompt that begins otherwise makes it useless, as it does any copy."""
    carrier = opened()
    find(carrier, 50)
    carrier.submit("a", prompt=60, prefix=0)
    assert [forget.session for forget in forgotten(carrier)] == ["a"]
    assert not any(plan.restore for plan in carrier.plans)


def test_a_fork_that_finds_its_own_copy_borrows_none() -> None:
    """From then on its parent's copy is not lent to it."""
    carrier = with_state("park")
    carrier.open("b", "a", forked_tokens=24)
    b = carrier.scheduler.session(SessionId("b"))
    carrier.apply(CopyFound(at_s=0, session=b.id, kv_tokens=30))
    carrier.tool("a")
    carrier.finish(0)  # "a" has a copy now
    assert (b.copied_tokens, b.source, b.forked_tokens) == (30, None, 0)


def test_a_found_copy_lasts_until_it_is_lost() -> None:
    """The store may still lose it, and another one may be found then."""
    carrier = opened()
    session = find(carrier, 50)
    carrier.apply(CopyLost(at_s=0, session=A))
    assert (session.residency, session.held_tokens) == (Residency.ABSENT, 0)
    assert find(carrier, 40).kv_tokens == 40


def test_where_a_found_copy_is_may_be_told() -> None:
    """A tier that the store names is that of the found copy."""
    carrier = opened()
    session = find(carrier)
    assert session.tier is None
    carrier.apply(CopyMoved(at_s=0, session=A, tier="disk"))
    assert session.tier == "disk"


@pytest.mark.parametrize("case", ["resident", "parked", "turn", "queued"])
def test_nothing_is_found_for_a_session_that_has_something(case: str) -> None:
    """With state or a turn of its own a found copy is refused, traceless."""
    carrier = opened("park", slots=1)
    if case == "resident":
        carrier.run("a", 20)
    elif case == "parked":
        find(carrier, 30)
    elif case == "turn":
        carrier.submit("a")
    else:
        carrier.open("b")
        carrier.submit("b")
        carrier.submit("a")
    session = carrier.scheduler.session(A)
    before = (session.residency, session.held_tokens, session.copied_tokens)
    with pytest.raises(IllegalMove, match="CopyFound cannot happen to session 'a'"):
        find(carrier, 50)
    after = (session.residency, session.held_tokens, session.copied_tokens)
    assert after == before


def test_nothing_is_found_for_a_session_with_a_slot() -> None:
    """Memory that a turn got before it was given up has to be given back first."""
    session = Session(id=A)
    session.apply(
        TurnSubmitted(
            at_s=0, session=A, prompt_tokens=60, prefix_tokens=0, max_output_tokens=5
        )
    )
    session.apply(TurnAdmitted(at_s=0, session=A, slot=0, forced=False))
    session.apply(TurnAborted(at_s=0, session=A, reason="test"))
    with pytest.raises(IllegalMove, match="CopyFound"):
        session.apply(CopyFound(at_s=0, session=A, kv_tokens=50))
    session.apply(Released(at_s=0, session=A, slot=0, kept_tokens=0))
    session.apply(CopyFound(at_s=0, session=A, kv_tokens=50))
    assert session.residency is Residency.PARKED


def test_nothing_is_found_for_a_session_that_is_closed() -> None:
    """Whoever has ended has no use for it."""
    session = Session(id=A)
    session.apply(SessionClosed(at_s=0, session=A))
    with pytest.raises(IllegalMove, match="CopyFound"):
        session.apply(CopyFound(at_s=0, session=A, kv_tokens=50))


# ---- kept ----------------------------------------------------------------------------


def test_kept_state_is_copied_before_it_is_released() -> None:
    """What is dirty goes to the store first; then slot, memory and session go."""
    carrier = with_state()
    close(carrier, kept=True)
    [copy] = carrier.plans[-1].copy
    assert copy.kv_tokens == 24
    assert not releases(carrier)
    carrier.finish(copy.slot)
    assert [released.kept_tokens for released in releases(carrier)] == [24]
    assert gone(carrier)
    assert not forgotten(carrier)


@pytest.mark.parametrize("kept", [True, False])
def test_only_a_kept_copy_outlives_its_session(kept: bool) -> None:
    """Of a parked session nothing has to move; its copy is forgotten if not kept."""
    carrier = with_state("park")
    carrier.tool("a")
    carrier.finish(0)
    close(carrier, kept=kept)
    assert gone(carrier)
    assert len(copies(carrier)) == 1
    assert len(forgotten(carrier)) == (not kept)


def test_what_is_not_kept_is_not_copied() -> None:
    """Dirty state of a session that ends for good is released at once."""
    carrier = with_state()
    close(carrier, kept=False)
    assert gone(carrier)
    assert not copies(carrier)
    assert not forgotten(carrier)  # there was no copy


def test_a_kept_copy_that_fails_lets_the_session_go() -> None:
    """It is not tried again, and nothing stays behind."""
    carrier = with_state()
    close(carrier, kept=True)
    carrier.fail(0)
    assert gone(carrier)
    assert len(copies(carrier)) == 1
    assert not forgotten(carrier)


def test_an_older_copy_is_kept_where_the_newer_one_fails() -> None:
    """A prefix of the state is better than none."""
    carrier = with_state("park")
    carrier.tool("a")
    carrier.finish(0)
    carrier.end_tool("a")
    carrier.run("a", 40)
    close(carrier, kept=True)
    carrier.fail(min(carrier.busy))
    assert [released.kept_tokens for released in releases(carrier)] == [24, 24]
    assert gone(carrier)
    assert not forgotten(carrier)


@pytest.mark.parametrize("kept", [True, False])
def test_a_copy_that_runs_when_the_session_ends_comes_to_its_end(kept: bool) -> None:
    """Nothing is released under it; only then is it known whether it is kept."""
    carrier = with_state("park")
    carrier.tool("a")
    close(carrier, kept=kept)
    assert not releases(carrier)
    carrier.finish(0)
    assert gone(carrier)
    assert len(copies(carrier)) == 1
    assert len(forgotten(carrier)) == (not kept)


def test_kept_state_waits_for_the_link() -> None:
    """While another copy runs it stays on the accelerator, and is copied then."""
    carrier = with_state("park")
    carrier.open("b")
    carrier.run("b", 20)
    carrier.tool("b")
    close(carrier, kept=True)
    assert [copy.session for copy in copies(carrier)] == ["b"]
    assert carrier.scheduler.session(A).residency is Residency.RESIDENT
    carrier.finish(min(carrier.busy))
    assert [copy.session for copy in copies(carrier)] == ["b", "a"]
    carrier.finish(min(carrier.busy))
    assert carrier.scheduler.sessions == 1


def test_an_engine_that_exports_nothing_keeps_nothing() -> None:
    """The session goes at once, without a copy."""
    carrier = with_state()
    carrier.scheduler = Scheduler(
        capacity=Capacity(slots=2, kv_tokens=200, context_tokens=100, exports_kv=False),
        policy=carrier.policy,
    )
    carrier.open("a")
    carrier.run("a", 20)
    close(carrier, kept=True)
    assert gone(carrier)
    assert not copies(carrier)


def test_kept_state_is_found_again() -> None:
    """A session that ends kept goes on in a new one of its name, as if it never had."""
    carrier = with_state()
    close(carrier, kept=True)
    carrier.finish(0)
    carrier.open("a")
    session = find(carrier, 24)
    carrier.run("a", 40)
    restored = [restore.kv_tokens for plan in carrier.plans for restore in plan.restore]
    assert restored == [24]
    assert session.held_tokens == 44
