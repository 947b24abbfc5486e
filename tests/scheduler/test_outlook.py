"""What waits, moves and prefills are expected to take, and from what that is learned.

A token is a byte here, and costs are in proportion to tokens unless a test says so.
"""

from itertools import pairwise

import pytest

from kvalet.scheduler import (
    CopyMoved,
    CostModel,
    DecodeDone,
    DecodeStarted,
    LatencyModel,
    Outlook,
    PrefillAdvanced,
    PrefillStarted,
)
from kvalet.scheduler.family import adopt
from kvalet.scheduler.outlook import OVERHEAD, USER

from .life import Life


def outlook_of(
    *,
    prefill_s: float | None = None,
    save_s: float | None = None,
    restore_s: dict[str, float] | None = None,
    bytes_per_token: int = 1,
) -> Outlook:
    """Return an outlook that knows what a token costs; None is not known."""
    costs = CostModel()
    for tokens in (10, 100, 1000):
        if prefill_s is not None:
            costs.observe_prefill(tokens, 0, tokens * prefill_s)
        for tier, token_s in (restore_s or {}).items():
            costs.observe_restore(tokens, tokens * token_s, tier)
        if save_s is not None:
            costs.observe_save(tokens, tokens * save_s, "host")
    return Outlook(latency=LatencyModel(), cost=costs, bytes_per_token=bytes_per_token)


# ---- waits ---------------------------------------------------------------------------


def test_who_has_a_turn_waits_for_nothing() -> None:
    """Neither a call in the background nor the past counts then."""
    outlook = outlook_of()
    life = Life(outlook)
    life.tool(expected_s=100)
    life.submit(20)
    assert outlook.remaining_s(life.session, 5) == 0


def test_a_tool_whose_time_is_known_ends_when_it_should() -> None:
    """From its start on; once it is overdue it is expected at any moment."""
    outlook = outlook_of()
    life = Life(outlook)
    life.tool(expected_s=100, at_s=50)
    assert outlook.remaining_s(life.session, 60) == 90
    assert outlook.remaining_s(life.session, 160) == 0


def test_a_tool_is_expected_by_what_it_has_taken() -> None:
    """Another tool, of which nothing is known, does not share its certainty."""
    outlook = outlook_of()
    teacher, life = Life(outlook), Life(outlook, "b")
    for _ in range(60):
        teacher.tool(tool="make")
        teacher.end_tool(tool="make", seconds=30.0, at_s=30)
    life.tool(tool="make", at_s=100)
    assert outlook.remaining_s(life.session, 110) == pytest.approx(20, rel=0.15)
    latency_s = outlook.latency.remaining_s("make", "other", 10.0)
    assert outlook.remaining_s(life.session, 110) == latency_s


def test_several_tools_end_with_the_last() -> None:
    """Of known times that is the longest, of unknown ones no less than any of them."""
    outlook = outlook_of()
    life = Life(outlook)
    life.tool("c1", expected_s=100)
    life.tool("c2", expected_s=30)
    assert outlook.remaining_s(life.session, 10) == 90
    life.tool("c3")
    assert outlook.remaining_s(life.session, 10) >= 90
    unknown = Life(outlook, "b")
    unknown.tool("c1")
    alone_s = outlook.remaining_s(unknown.session, 50)
    unknown.tool("c2")
    both_s = outlook.remaining_s(unknown.session, 50)
    assert alone_s < both_s < 2 * alone_s


def test_what_follows_an_answer_and_what_follows_a_tool_are_learned_apart() -> None:
    """A user takes a minute, the turn after a tool comes in a tenth of a second."""
    outlook, now_s = outlook_of(), 0.0
    life = Life(outlook)
    for _ in range(60):
        life.run(20, at_s=now_s, seconds=1.0)
        life.tool(at_s=now_s + 61)  # a minute after the answer
        life.end_tool(seconds=5.0, at_s=now_s + 66)
        now_s += 66.1
    life.run(20, at_s=now_s, seconds=1.0)
    after_answer_s = outlook.remaining_s(life.session, now_s + 1)
    life.tool(at_s=now_s + 61)
    life.end_tool(seconds=5.0, at_s=now_s + 66)
    after_tool_s = outlook.remaining_s(life.session, now_s + 66)
    assert after_answer_s == pytest.approx(60, rel=0.15)
    assert after_tool_s < 6
    assert after_answer_s == outlook.latency.remaining_s(USER, USER, 0.0)
    assert after_tool_s == outlook.latency.remaining_s(OVERHEAD, USER, 0.0)


def test_the_time_before_the_first_turn_teaches_nothing() -> None:
    """Nobody has answered yet, so nobody thinks about an answer."""
    outlook = outlook_of()
    Life(outlook).submit(20, at_s=500)
    assert outlook.latency.counts(USER).count == 0


# ---- subagents -----------------------------------------------------------------------


def family(outlook: Outlook, *, blocking: bool = True) -> tuple[Life, Life]:
    """Return a parent whose call should end in a second, and its child."""
    parent, child = Life(outlook, "parent"), Life(outlook, "child")
    child.session.blocking = blocking
    adopt(parent.session, child.session, 0)
    parent.tool(expected_s=1)
    return parent, child


@pytest.mark.parametrize(("blocking", "remaining_s"), [(True, 50), (False, 1)])
def test_who_waits_for_a_subagent_waits_for_its_tools(
    blocking: bool, remaining_s: float
) -> None:
    """Its own call cannot end before; unless the subagent runs in the background."""
    outlook = outlook_of()
    parent, child = family(outlook, blocking=blocking)
    child.tool(expected_s=50)
    assert outlook.remaining_s(parent.session, 0) == remaining_s


def test_who_waits_for_a_subagent_waits_for_its_prompt() -> None:
    """As long as that has not been computed; of the answer nothing is known."""
    outlook = outlook_of(prefill_s=0.1)
    parent, child = family(outlook)
    child.submit(300)
    assert outlook.remaining_s(parent.session, 0) == pytest.approx(30)
    child.admit()
    child.prefill()
    assert outlook.remaining_s(parent.session, 0) == 1


def test_who_waits_for_a_parked_subagent_waits_for_its_restore_too() -> None:
    """From the tier that its copy is in, and then for the rest of its prompt."""
    outlook = outlook_of(prefill_s=0.1, restore_s={"host": 0.001, "disk": 0.05})
    parent, child = family(outlook)
    child.find(200, "disk")
    child.submit(300, prefix=200)
    assert outlook.remaining_s(parent.session, 0) == pytest.approx(20, rel=1e-3)
    child.happen(CopyMoved(at_s=0, session=child.session.id, tier="host"))
    assert outlook.remaining_s(parent.session, 0) == pytest.approx(10.2, rel=1e-3)


def test_a_subagent_that_has_nothing_to_do_delays_nobody() -> None:
    """It idles: it may end at any moment."""
    outlook = outlook_of()
    parent, _ = family(outlook)
    assert outlook.remaining_s(parent.session, 0) == 1


def test_subagents_of_subagents_count() -> None:
    """Down to the fourth generation; below that nobody looks."""
    outlook = outlook_of()
    lives = [Life(outlook, f"generation {number}") for number in range(6)]
    for number, (older, younger) in enumerate(pairwise(lives)):
        adopt(older.session, younger.session, 0)
        older.tool(expected_s=1 + number)
    lives[-1].tool(expected_s=100)
    assert outlook.remaining_s(lives[1].session, 0) == 100
    assert outlook.remaining_s(lives[0].session, 0) == 5


def test_the_chance_to_return_in_time() -> None:
    """That of all open calls together; none without a call, or behind a subagent."""
    outlook = outlook_of()
    life = Life(outlook)
    assert outlook.returns_within(life.session, 0, 1e9) == 0
    life.tool("c1", expected_s=10)
    assert outlook.returns_within(life.session, 0, 9) == 0
    assert outlook.returns_within(life.session, 0, 10) == 1
    life.tool("c2")
    ends = 1 - outlook.latency.survival("Bash", "other", 5.0, 20.0)
    assert 0 < ends < 1
    assert outlook.returns_within(life.session, 5, 20) == pytest.approx(ends)
    parent, _ = family(outlook)
    assert outlook.returns_within(parent.session, 0, 1e9) == 0


# ---- costs ---------------------------------------------------------------------------


def test_before_anything_was_measured_a_move_costs_half_of_a_prefill() -> None:
    """So that one gets tried; as soon as prefills are known, half of what they cost."""
    outlook = outlook_of()
    assert outlook.prefill_s(100) > 0
    assert outlook.save_s(100) == outlook.restore_s(100) == outlook.prefill_s(100) / 2
    outlook = outlook_of(prefill_s=0.1)
    assert outlook.save_s(100) == pytest.approx(5)
    assert outlook.restore_s(100) == pytest.approx(5)


def test_nothing_costs_nothing() -> None:
    """No tokens take no time, whatever a setup costs."""
    outlook = outlook_of(prefill_s=1, save_s=1, restore_s={"host": 1})
    for seconds in (outlook.prefill_s, outlook.save_s, outlook.restore_s):
        assert seconds(0) == seconds(-5) == 0
    assert outlook.computed_s(0) == outlook.back_s(0) == 0


def test_a_restore_costs_what_its_tier_does() -> None:
    """Without a tier it is that to which states go now."""
    outlook = outlook_of(save_s=0.01, restore_s={"disk": 0.05, "host": 0.001})
    assert outlook.restore_s(100, "host") == pytest.approx(0.1)
    assert outlook.restore_s(100, "disk") == pytest.approx(5)
    assert outlook.restore_s(100) == pytest.approx(0.1)


def test_computing_again_costs_those_who_come_meanwhile_as_well() -> None:
    """t seconds are t (1 + λ t), with λ turns a second; the link costs them nothing."""
    outlook = outlook_of(prefill_s=0.1, restore_s={"host": 0.15})
    assert outlook.computed_s(100) == pytest.approx(10)
    assert outlook.back_s(100) == pytest.approx(10)
    for turn in range(300):
        outlook.pace.admitted(100, turn * 5.0)
    assert outlook.pace.turns_per_s == pytest.approx(0.2)
    assert outlook.computed_s(100) == pytest.approx(10 * (1 + 0.2 * 10))
    assert outlook.prefill_s(100) == pytest.approx(10)
    assert outlook.back_s(100) == pytest.approx(15)


def test_a_session_is_priced_by_the_tier_that_its_copy_is_in() -> None:
    """Wherever it was copied to, and wherever the store has moved it since."""
    outlook = outlook_of(
        prefill_s=1.0, save_s=0.01, restore_s={"disk": 0.1, "host": 0.001}
    )
    life = Life(outlook)
    life.run(100)
    life.copy(tier="disk", seconds=1.0)
    assert life.session.tier == "disk"
    assert outlook.moved_s(life.session) == pytest.approx(10)
    life.happen(CopyMoved(at_s=0, session=life.session.id, tier="host"))
    assert outlook.moved_s(life.session) == pytest.approx(0.1)
    life.release()
    life.happen(CopyMoved(at_s=0, session=life.session.id, tier="disk"))
    assert outlook.moved_s(life.session) == pytest.approx(10)


def test_leaving_costs_the_cheaper_of_both_ways() -> None:
    """Parked: what is dirty out, all of it back. Dropped: an older copy is of use."""
    outlook = outlook_of(prefill_s=1.0, save_s=0.3, restore_s={"host": 0.1})
    life = Life(outlook)
    life.run(100)
    assert outlook.parked_s(life.session) == pytest.approx(40)
    assert outlook.dropped_s(life.session) == pytest.approx(100)
    assert outlook.moved_s(life.session) == pytest.approx(40)
    life.copy(90, seconds=27.0)
    assert outlook.parked_s(life.session) == pytest.approx(13)
    assert outlook.dropped_s(life.session) == pytest.approx(19, rel=0.02)
    assert outlook.moved_s(life.session) == pytest.approx(13)
    life.copy(100, nbytes=10, seconds=3.0)
    assert outlook.moved_s(life.session) == pytest.approx(10)


def test_a_copy_is_worth_what_it_saves_by_the_second() -> None:
    """Less the longer its session will wait; who is due counts a second."""
    outlook = outlook_of(prefill_s=1.0, restore_s={"host": 0.2, "disk": 5.0})
    life = Life(outlook)
    life.find(100, "host")
    life.tool(expected_s=40)
    assert outlook.worth_s(life.session, 0) == pytest.approx(80 / 40)
    assert outlook.worth_s(life.session, 39.9) == pytest.approx(80)
    life.submit(200, prefix=100)
    assert outlook.worth_s(life.session, 0) == pytest.approx(80)
    life.happen(CopyMoved(at_s=0, session=life.session.id, tier="disk"))
    assert outlook.worth_s(life.session, 0) == 0  # computing it is faster
    assert outlook.worth_s(Life(outlook).session, 0) == 0


# ---- learning ------------------------------------------------------------------------


def test_a_prefill_teaches_what_prefills_cost() -> None:
    """By the time that the accelerator was busy, or since the work began."""
    outlook = outlook_of()
    life = Life(outlook)
    life.submit(100)
    life.admit(at_s=50)
    life.prefill(at_s=60, seconds=8.0)
    assert outlook.prefill_s(100) == pytest.approx(8, rel=0.05)
    outlook = outlook_of()
    life = Life(outlook)
    life.submit(100)
    life.admit()
    life.prefill(seconds=8.0, busy_s=2.0)
    assert outlook.prefill_s(100) == pytest.approx(2, rel=0.05)


def test_a_part_of_a_prefill_teaches_as_well() -> None:
    """Each by itself, with what was there before it as its context."""
    outlook = outlook_of()
    life = Life(outlook)
    life.submit(100)
    life.admit()
    session = life.session.id
    life.happen(PrefillStarted(at_s=0, session=session, slot=0, until_tokens=40))
    life.happen(
        PrefillAdvanced(
            at_s=4,
            session=session,
            kv_tokens=40,
            computed_tokens=40,
            reused_tokens=0,
            expected_tokens=0,
        )
    )
    assert outlook.prefill_s(40) == pytest.approx(4, rel=0.05)
    life.prefill(at_s=10, seconds=6.0)
    assert outlook.cost.prefill.observations == 2
    assert outlook.prefill_s(60, 40) == pytest.approx(6, rel=0.1)


def test_a_prefill_that_computed_nothing_teaches_nothing() -> None:
    """All of the prompt was there."""
    outlook = outlook_of()
    life = Life(outlook)
    life.run(100)
    life.submit(100, prefix=100)
    life.admit()
    life.prefill(seconds=8.0)
    assert outlook.cost.prefill.observations == 0


def test_a_copy_teaches_its_tier() -> None:
    """From then on, that is where states go."""
    outlook = outlook_of()
    life = Life(outlook)
    life.run(100)
    life.copy(seconds=7.0, tier="disk")
    assert outlook.save_s(100) == pytest.approx(7)
    assert set(outlook.cost.saves) == {"disk"}
    assert outlook.cost.tier == "disk"
    assert not outlook.cost.restores


def test_a_restore_teaches_the_tier_that_it_came_from() -> None:
    """And no other: a fast tier stays fast."""
    outlook = outlook_of(restore_s={"host": 0.001})
    life = Life(outlook)
    life.find(100)
    life.submit(120, prefix=100)
    life.admit()
    life.restore()
    life.restored(seconds=9.0, tier="disk")
    assert outlook.restore_s(100, "disk") == pytest.approx(9)
    assert outlook.restore_s(100, "host") == pytest.approx(0.1)


def test_the_first_copy_tells_how_large_a_token_is() -> None:
    """Where the backend did not say; a later copy does not change it."""
    outlook = outlook_of(bytes_per_token=0)
    life = Life(outlook)
    life.run(100)
    life.copy(nbytes=5000, seconds=2.0)
    assert outlook.save_s(100) == pytest.approx(2)
    assert outlook.save_s(50) < 2
    life.run(200)
    life.copy(nbytes=999, seconds=0.4)
    assert outlook.save_s(100) == pytest.approx(2, rel=0.3)


def test_a_decode_teaches_what_a_step_costs() -> None:
    """The first token is the prefill's, so ten tokens are nine steps."""
    outlook = outlook_of()
    life = Life(outlook)
    life.submit(100)
    life.admit()
    life.prefill()
    assert (outlook.decoding_sequences, outlook.decoding_tokens) == (0, 0)
    assert outlook.decode_step_s(1, 100) == 0
    life.happen(DecodeStarted(at_s=0, session=life.session.id, slot=0))
    assert (outlook.decoding_sequences, outlook.decoding_tokens) == (1, 100)
    life.happen(
        DecodeDone(at_s=1.8, session=life.session.id, output_tokens=10, kv_tokens=109)
    )
    assert (outlook.decoding_sequences, outlook.decoding_tokens) == (0, 0)
    assert outlook.decode_step_s(1, 100) == pytest.approx(0.2, rel=0.05)
