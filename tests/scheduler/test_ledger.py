"""The books: never overdrawn, empty when nobody holds anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.scheduler import Capacity, InvalidSetting, Ledger, LedgerError, SessionId

A, B = SessionId("a"), SessionId("b")


def test_slots_are_given_lowest_first() -> None:
    """Runs repeat because the lowest free slot is always the next one."""
    ledger = Ledger(slots=3, kv_tokens=30)
    assert [ledger.open(A, 1), ledger.open(B, 1)] == [0, 1]
    ledger.close(A)
    assert ledger.open(SessionId("c"), 1) == 0


def test_an_overdraft_changes_nothing() -> None:
    """An entry that would overdraw the books raises and leaves them as they were."""
    ledger = Ledger(slots=2, kv_tokens=10)
    ledger.open(A, 8)
    with pytest.raises(LedgerError, match="needs 3 more tokens, 2 are free"):
        ledger.open(B, 3)
    with pytest.raises(LedgerError, match="needs 3 more tokens"):
        ledger.resize(A, 11)
    assert (ledger.reserved_tokens, ledger.free_slots, ledger.holders) == (8, 1, 1)
    ledger.check_integrity()


def test_misuse_is_named() -> None:
    """Opening twice, closing what is not open and running out of slots say so."""
    ledger = Ledger(slots=1, kv_tokens=10)
    ledger.open(A, 1)
    with pytest.raises(LedgerError, match="holds a slot already"):
        ledger.open(A, 1)
    with pytest.raises(LedgerError, match="no slot is free"):
        ledger.open(B, 1)
    with pytest.raises(LedgerError, match="'b' holds no slot"):
        ledger.close(B)
    with pytest.raises(LedgerError, match="cannot hold -1 tokens"):
        ledger.resize(A, -1)


@pytest.mark.parametrize("name", ["slots", "kv_tokens", "context_tokens"])
def test_capacity_must_be_positive(name: str) -> None:
    """A capacity of nothing is refused by name."""
    slots, kv_tokens, context_tokens = (
        0 if each == name else 1 for each in ("slots", "kv_tokens", "context_tokens")
    )
    with pytest.raises(InvalidSetting, match=f"{name} must be at least 1, not 0"):
        Capacity(slots=slots, kv_tokens=kv_tokens, context_tokens=context_tokens)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "resize", "close"]),
            st.sampled_from([A, B, SessionId("c")]),
            st.integers(0, 12),
        )
    )
)
def test_books_always_add_up(entries: list[tuple[str, SessionId, int]]) -> None:
    """Whatever is entered or refused, the books agree with what is held."""
    ledger = Ledger(slots=2, kv_tokens=20)
    held: dict[SessionId, int] = {}
    for act, session, tokens in entries:
        try:
            if act == "open":
                ledger.open(session, tokens)
                held[session] = tokens
            elif act == "resize":
                ledger.resize(session, tokens)
                held[session] = tokens
            else:
                ledger.close(session)
                del held[session]
        except LedgerError:
            pass
        ledger.check_integrity()
        assert sum(held.values()) == ledger.reserved_tokens <= 20
        assert len(held) == ledger.holders <= 2
