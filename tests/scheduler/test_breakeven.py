"""When parking pays, from which context on, and when it never does."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.scheduler import InvalidSetting
from kvalet.scheduler.breakeven import break_even, pays_from_tokens
from kvalet.scheduler.cost import CostModel

BYTES_PER_TOKEN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCosts:
    """Costs by formula: seconds per token and per byte."""

    token_s: float
    context_s: float = 0.0
    setup_s: float = 0.0
    byte_s: float = 0.0
    copy_setup_s: float = 0.0

    def prefill_s(self, new_tokens: int, context_tokens: int) -> float:
        """Return the prefill's cost."""
        depth = context_tokens + new_tokens / 2
        return new_tokens * (self.token_s + self.context_s * depth) + self.setup_s

    def save_s(self, nbytes: int, tier: str | None = None) -> float:
        """Return the cost of a copy."""
        return self.copy_setup_s + nbytes * self.byte_s

    def restore_s(self, nbytes: int, tier: str | None = None) -> float:
        """Return the cost of a copy."""
        return self.copy_setup_s + nbytes * self.byte_s


def from_tokens(costs: KnownCosts, limit: int = 10_000) -> int | None:
    """Return from where on parking pays."""
    return pays_from_tokens(costs, limit_tokens=limit, bytes_per_token=BYTES_PER_TOKEN)


def test_the_figures_of_one_context() -> None:
    """Save and restore together are the shortest wait that parking is for."""
    costs = KnownCosts(token_s=1e-3, byte_s=1e-6, copy_setup_s=0.01)
    found = break_even(costs, context_tokens=1000, bytes_per_token=BYTES_PER_TOKEN)
    assert found is not None
    assert (found.prefill_s, found.pays) == (1.0, True)
    assert found.moving_s == found.save_s + found.restore_s == pytest.approx(0.22)


def test_only_what_is_new_is_saved() -> None:
    """A clean state costs its restore alone, plus what every copy costs."""
    costs = KnownCosts(token_s=1e-3, byte_s=1e-6)
    found = break_even(
        costs, context_tokens=1000, dirty_tokens=50, bytes_per_token=BYTES_PER_TOKEN
    )
    assert found is not None
    assert (found.save_s, found.restore_s) == pytest.approx((0.005, 0.1))


def test_it_pays_from_the_first_token() -> None:
    """Where every token moves faster than it is computed."""
    assert from_tokens(KnownCosts(token_s=1e-3, byte_s=1e-6)) == 1


def test_it_pays_once_the_setup_is_worth_it() -> None:
    """Two setups of 0.1 s are worth 250 tokens at 0.8 ms gained each."""
    costs = KnownCosts(token_s=1e-3, byte_s=1e-6, copy_setup_s=0.1)
    assert from_tokens(costs) == 251


def test_it_never_pays_on_a_slow_link() -> None:
    """Where moving a token takes longer than computing it, from no context on."""
    costs = KnownCosts(token_s=1e-3, byte_s=6e-6)
    assert from_tokens(costs) is None
    found = break_even(costs, context_tokens=9000, bytes_per_token=BYTES_PER_TOKEN)
    assert found is not None
    assert not found.pays


def test_attention_makes_it_pay_in_the_end() -> None:
    """Long contexts are computed more slowly: beyond 400 tokens even here."""
    costs = KnownCosts(token_s=1e-3, context_s=1e-6, byte_s=6e-6)
    assert from_tokens(costs) == 401
    assert from_tokens(costs, limit=400) is None


@given(
    token_s=st.floats(1e-6, 1e-2),
    context_s=st.floats(0, 1e-6),
    setup_s=st.floats(0, 0.1),
    byte_s=st.floats(0, 1e-4),
    copy_setup_s=st.floats(0, 0.1),
    limit=st.integers(1, 600),
)
def test_the_search_agrees_with_looking_everywhere(
    token_s: float,
    context_s: float,
    setup_s: float,
    byte_s: float,
    copy_setup_s: float,
    limit: int,
) -> None:
    """From the answer on it pays everywhere, and right before it does not."""
    costs = KnownCosts(
        token_s=token_s,
        context_s=context_s,
        setup_s=setup_s,
        byte_s=byte_s,
        copy_setup_s=copy_setup_s,
    )
    paying = [
        found.pays
        for tokens in range(1, limit + 1)
        if (
            found := break_even(
                costs, context_tokens=tokens, bytes_per_token=BYTES_PER_TOKEN
            )
        )
    ]
    start = from_tokens(costs, limit)
    if start is None:
        assert not paying[-1]
    else:
        assert all(paying[start - 1 :])
        assert start == 1 or not paying[start - 2]


def test_unknown_costs_are_no_answer() -> None:
    """One cost that nobody has measured, and there is nothing to weigh."""
    costs = CostModel()
    costs.observe_prefill(100, 0, 1.0)
    costs.observe_save(1000, 0.1, "host")
    assert break_even(costs, context_tokens=100, bytes_per_token=10) is None
    assert pays_from_tokens(costs, limit_tokens=100, bytes_per_token=10) is None


def test_tokens_have_a_size() -> None:
    """A backend that does not say how large its tokens are can't be judged."""
    with pytest.raises(InvalidSetting, match="bytes_per_token must be above 0, not 0"):
        break_even(KnownCosts(token_s=1.0), context_tokens=1, bytes_per_token=0)
