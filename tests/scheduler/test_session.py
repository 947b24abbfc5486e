"""The session's two tables, proved over every state that can be reached."""

from collections import deque
from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple

import pytest

from kvalet.scheduler import (
    CallId,
    Copied,
    CopyFailed,
    CopyForgotten,
    CopyLent,
    CopyLost,
    CopyStarted,
    DecodeDone,
    DecodeStarted,
    EngineRestarted,
    Event,
    IllegalMove,
    Phase,
    PrefillDone,
    PrefillStarted,
    Released,
    Residency,
    Restored,
    RestoreFailed,
    RestoreStarted,
    Session,
    SessionClosed,
    SessionId,
    ToolEnded,
    ToolStarted,
    TurnAborted,
    TurnAdmitted,
    TurnRejected,
    TurnSubmitted,
)

S = SessionId("s")
LENDER = SessionId("lender")
FORKED_TOKENS = 2
CALLS = (CallId("c1"), CallId("c2"))


class State(NamedTuple):
    """What of a session decides what may happen to it."""

    phase: Phase
    residency: Residency
    admitted: bool | None
    running: bool | None
    slot: int | None
    calls: int
    held_tokens: int
    kv_tokens: int
    copied_tokens: int
    forked_tokens: int
    source: SessionId | None
    closed: bool


def state_of(session: Session) -> State:
    turn = session.turn
    return State(
        phase=session.phase,
        residency=session.residency,
        admitted=None if turn is None else turn.admitted,
        running=None if turn is None else turn.running,
        slot=session.slot,
        calls=len(session.open_calls),
        held_tokens=session.held_tokens,
        kv_tokens=session.kv_tokens,
        copied_tokens=session.copied_tokens,
        forked_tokens=session.forked_tokens,
        source=session.source,
        closed=session.closed,
    )


def events(session: Session) -> Iterator[Event]:
    """Yield everything that anybody could try; most of it is illegal most of the time.

    Prompts grow to 4 tokens and are then edited down, so that the figures are finite.
    """
    prompt = min(session.held_tokens + 1, 4)
    for prefix in {0, 1, session.held_tokens}:
        yield TurnSubmitted(
            at_s=0,
            session=S,
            prompt_tokens=max(prompt, prefix),
            prefix_tokens=prefix,
            max_output_tokens=1,
        )
    for kind in (SessionClosed, CopyLost, CopyForgotten, EngineRestarted):
        yield kind(at_s=0, session=S)
    for reason in (TurnAborted, TurnRejected, CopyFailed, RestoreFailed):
        yield reason(at_s=0, session=S, reason="test")
    for call in CALLS:
        if call not in session.open_calls:
            yield ToolStarted(at_s=0, session=S, call=call, tool="Bash")
        yield ToolEnded(
            at_s=0, session=S, call=call, tool="Bash", seconds=1, status="ok"
        )
    held = session.held_tokens
    yield PrefillDone(
        at_s=0, session=S, computed_tokens=1, reused_tokens=0, expected_tokens=0
    )
    prompt_tokens = 0 if session.turn is None else session.turn.prompt_tokens
    yield DecodeDone(at_s=0, session=S, output_tokens=1, kv_tokens=prompt_tokens)
    for moved in (Copied, Restored):
        yield moved(at_s=0, session=S, kv_tokens=held, nbytes=1, seconds=1, tier="host")
    slot = 1 if session.slot is None else session.slot
    yield TurnAdmitted(at_s=0, session=S, slot=slot, forced=False)
    for started in (PrefillStarted, DecodeStarted):
        yield started(at_s=0, session=S, slot=slot)
    for move in (CopyStarted, RestoreStarted):
        yield move(at_s=0, session=S, slot=slot, kv_tokens=held)
    yield Released(at_s=0, session=S, slot=slot, kept_tokens=session.copied_tokens)
    for lent in range(FORKED_TOKENS + 1):
        yield CopyLent(at_s=0, session=S, source=LENDER, kv_tokens=lent)


def explore() -> dict[State, dict[type[Event], set[State]]]:
    """Return every reachable state and where each kind of event leads from it."""
    starts = [Session(id=S), Session(id=S, forked_tokens=FORKED_TOKENS)]
    reached: dict[State, dict[type[Event], set[State]]] = {}
    todo = deque(starts)
    seen = {state_of(start) for start in starts}
    while todo:
        session = todo.popleft()
        moves = reached.setdefault(state_of(session), {})
        for event in events(session):
            after = deepcopy(session)
            try:
                after.apply(event)
            except IllegalMove:
                assert state_of(after) == state_of(session), f"{event} left a trace"
                continue
            moves.setdefault(type(event), set()).add(state_of(after))
            if state_of(after) not in seen:
                seen.add(state_of(after))
                todo.append(after)
    return reached


@pytest.fixture(scope="module")
def graph() -> dict[State, dict[type[Event], set[State]]]:
    """All reachable states."""
    return explore()


Graph = dict[State, dict[type[Event], set[State]]]


def test_the_graph_is_not_trivial(graph: Graph) -> None:
    """Every phase and every residency is reached, in more than a hundred states."""
    assert set(Phase) == {state.phase for state in graph}
    assert set(Residency) == {state.residency for state in graph}
    assert len(graph) > 100


def test_every_event_is_legal_somewhere(graph: Graph) -> None:
    """No event of the vocabulary is dead letter."""
    legal = {kind for moves in graph.values() for kind in moves}
    tried = {type(event) for event in events(Session(id=S))}
    assert tried == legal


def test_work_starts_only_on_state_that_is_there(graph: Graph) -> None:
    """Prefill starts on resident or absent state, decode on resident, nothing else."""
    for state, moves in graph.items():
        if PrefillStarted in moves:
            assert state.residency in (Residency.RESIDENT, Residency.ABSENT)
        if DecodeStarted in moves:
            assert state.residency is Residency.RESIDENT
        if PrefillStarted in moves or DecodeStarted in moves:
            assert state.admitted and not state.running and state.slot is not None


def test_nothing_moves_under_running_work(graph: Graph) -> None:
    """State on which a unit of work has a claim is neither copied nor released."""
    for state, moves in graph.items():
        if state.admitted:
            assert CopyStarted not in moves
            assert Released not in moves


def test_a_session_never_has_two_units_of_work(graph: Graph) -> None:
    """While a unit runs, none can start and no turn can be submitted or admitted."""
    starts = {PrefillStarted, DecodeStarted, TurnSubmitted, TurnAdmitted}
    for state, moves in graph.items():
        if state.running:
            assert not starts & moves.keys()


def test_state_on_the_accelerator_has_a_slot(graph: Graph) -> None:
    """So has no other, unless it was given for a restore and can be given back."""
    on_slot = {Residency.RESIDENT, Residency.PARKING, Residency.RESTORING}
    for state, moves in graph.items():
        if state.residency in on_slot:
            assert state.slot is not None
        elif state.slot is not None and not state.admitted:
            assert Released in moves


def test_figures_agree_with_each_other(graph: Graph) -> None:
    """Copied and valid tokens are held tokens; parked state is wholly in the store."""
    for state in graph:
        assert 0 <= state.copied_tokens <= state.held_tokens
        assert 0 <= state.kv_tokens <= state.held_tokens
        if state.admitted is None:
            assert state.kv_tokens == state.held_tokens
        if state.residency is Residency.ABSENT:
            assert state.held_tokens == 0
        if state.residency is Residency.PARKED:
            assert state.copied_tokens == state.held_tokens > 0


def test_an_edited_prefix_survives_its_restore(graph: Graph) -> None:
    """Parked state that shares only a prefix with the prompt is restored for it."""
    assert any(
        RestoreStarted in moves and 0 < state.kv_tokens < state.held_tokens
        for state, moves in graph.items()
    )


def test_a_copy_of_overwritten_state_is_gone(graph: Graph) -> None:
    """Once the prefill of an edited prompt runs, no copy is longer than its prefix."""
    for moves in graph.values():
        for after in moves.get(PrefillStarted, ()):
            assert after.copied_tokens <= after.kv_tokens


def test_a_waiting_session_is_in_a_tool_exactly_while_a_call_is_open(
    graph: Graph,
) -> None:
    """TOOL has an open call, IDLE has none."""
    for state in graph:
        if state.phase is Phase.TOOL:
            assert state.calls
        if state.phase is Phase.IDLE:
            assert not state.calls


def test_every_turn_can_end(graph: Graph) -> None:
    """From every state with a turn, one without can be reached; no dead ends."""
    ends = {state for state in graph if state.admitted is None}
    reachable = set(ends)
    grown = True
    while grown:
        more = {
            state
            for state, moves in graph.items()
            if state not in reachable
            and any(after & reachable for after in moves.values())
        }
        grown = bool(more)
        reachable |= more
    assert reachable == set(graph)


def test_a_turn_needs_no_luck_to_end(graph: Graph) -> None:
    """Even if every copy and restore fails, the turn comes to its end."""
    luck = {Copied, Restored, TurnAborted, TurnRejected}
    for state, moves in graph.items():
        if state.admitted:
            assert (
                moves.keys()
                - luck
                - {
                    ToolStarted,
                    ToolEnded,
                    CopyLost,
                    CopyForgotten,
                    CopyLent,
                    EngineRestarted,
                }
            )


def test_losing_the_copy_never_loses_resident_state(graph: Graph) -> None:
    """A lost copy costs parked state only; what is on the accelerator stays."""
    for state, moves in graph.items():
        for after in moves.get(CopyLost, ()):
            parked = state.residency is Residency.PARKED
            assert parked or after.kv_tokens == state.kv_tokens


def test_a_failed_move_says_what_was_tried() -> None:
    """The message names event, session and state."""
    session = Session(id=S)
    with pytest.raises(IllegalMove, match=r"Copied.*'s'.*idle/absent"):
        session.apply(
            Copied(at_s=0, session=S, kv_tokens=1, nbytes=1, seconds=1, tier="host")
        )


def test_a_borrowed_copy_is_all_that_its_borrower_has(graph: Graph) -> None:
    """A session is parked in another's copy, or on its way out of it; never more."""
    borrowed = [state for state in graph if state.source is not None]
    assert {state.residency for state in borrowed} == {
        Residency.PARKED,
        Residency.RESTORING,
    }
    for state in borrowed:
        assert state.forked_tokens
        assert state.held_tokens == state.copied_tokens <= state.forked_tokens


def test_only_a_fork_without_state_of_its_own_borrows(graph: Graph) -> None:
    """Once it has been restored or prefilled, nothing is lent to a session again."""
    for state, moves in graph.items():
        if CopyLent in moves:
            assert state.forked_tokens and not state.running
            assert state.residency in (Residency.ABSENT, Residency.PARKED)
        if state.residency in (Residency.RESIDENT, Residency.PARKING):
            assert not state.forked_tokens
        for after in moves.get(Restored, ()):
            assert not (state.source and after.copied_tokens)


def test_a_loan_that_is_called_in_leaves_nothing(graph: Graph) -> None:
    """The borrower is absent then, whatever its turn is waiting for."""
    called_in = [
        after
        for state, moves in graph.items()
        if state.source is not None
        for after in moves.get(CopyLent, ())
        if after.source is None
    ]
    assert called_in
    assert {after.residency for after in called_in} == {Residency.ABSENT}
