"""The cost model: the forms of the four costs, tiers, and what is kept."""

import msgspec
import pytest

from kvalet.scheduler.cost import CostModel, CostRecord


def prefill_s(new: int, context: int) -> float:
    """Return a prefill of a small model on one thread."""
    return new * (6.1e-3 + 1.8e-6 * (context + new / 2)) + 0.004


def step_s(sequences: int, context: int) -> float:
    """Return a decode step of the same."""
    return 18e-3 + 2.7e-3 * sequences + 13e-6 * context


def taught() -> CostModel:
    """Return a model that has seen a few of everything."""
    costs = CostModel()
    for new, context in ((128, 0), (1024, 0), (64, 1024), (64, 3000), (512, 512)) * 3:
        costs.observe_prefill(new, context, prefill_s(new, context))
    for sequences, context in ((1, 100), (2, 300), (1, 3000), (4, 4000)) * 3:
        costs.observe_decode_step(sequences, context, step_s(sequences, context))
    for nbytes in (1_000_000, 100_000_000) * 5:
        costs.observe_save(nbytes, 0.002 + nbytes / 1.9e9, "host")
        costs.observe_restore(nbytes, 0.002 + nbytes / 2.7e9, "host")
    return costs


def test_nothing_is_known_at_first() -> None:
    """Every cost is None and every confidence is zero."""
    costs = CostModel()
    assert costs.prefill_s(1, 0) is None
    assert costs.decode_step_s(1, 0) is None
    assert costs.save_s(1) is None
    assert costs.restore_s(1, "host") is None
    assert costs.prefill_confidence(1, 0) == costs.save_confidence(1) == 0.0
    assert costs.decode_step_confidence(1, 0) == costs.restore_confidence(1) == 0.0


@pytest.mark.parametrize("costs", [CostModel(), taught()])
def test_nothing_costs_nothing(costs: CostModel) -> None:
    """No tokens, no sequences, no bytes: zero, whatever is known."""
    assert costs.prefill_s(0, 1000) == 0.0
    assert costs.decode_step_s(0, 0) == 0.0
    assert costs.save_s(0) == costs.restore_s(0, "nowhere") == 0.0


@pytest.mark.parametrize(("new", "context"), [(32, 0), (256, 2000), (8000, 0)])
def test_prefill_has_its_form(new: int, context: int) -> None:
    """Quadratic in what is new, linear in what is before it, with a setup."""
    expected = prefill_s(new, context)
    assert taught().prefill_s(new, context) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("sequences", "context"), [(1, 500), (2, 6000), (8, 8000)])
def test_a_decode_step_has_its_form(sequences: int, context: int) -> None:
    """A constant, a share per sequence, and one per token of context."""
    expected = step_s(sequences, context)
    found = taught().decode_step_s(sequences, context)
    assert found == pytest.approx(expected, rel=0.03)


def test_a_single_prefill_is_taken_as_proportional() -> None:
    """Twice the tokens, twice the time; attention is not invented."""
    costs = CostModel()
    costs.observe_prefill(1000, 0, 2.0)
    assert costs.prefill_s(2000, 0) == pytest.approx(4.0)
    assert costs.prefill_confidence(2000, 0) < costs.prefill_confidence(1000, 0)


def test_a_single_decode_step_is_taken_as_constant() -> None:
    """What a longer context or another sequence adds is not known yet."""
    costs = CostModel()
    costs.observe_decode_step(1, 1000, 0.02)
    assert costs.decode_step_s(4, 9000) == pytest.approx(0.02)
    assert costs.decode_step_confidence(4, 9000) < 0.1


def test_tiers_are_apart() -> None:
    """Each tier has its own costs; without a name the one seen last is meant."""
    costs = CostModel()
    costs.observe_save(1_000_000, 0.001, "host")
    costs.observe_save(1_000_000, 0.02, "redis")
    assert costs.save_s(1_000_000, "host") == pytest.approx(0.001)
    assert costs.save_s(1_000_000) == pytest.approx(0.02)
    assert costs.save_s(1_000_000, "disk") is None
    assert costs.restore_s(1_000_000, "host") is None


def test_other_tiers_can_be_adopted() -> None:
    """What is known here stays, what is not is taken over."""
    costs, other = CostModel(), CostModel()
    costs.observe_save(1_000_000, 0.001, "host")
    other.observe_save(1_000_000, 0.5, "host")
    other.observe_save(1_000_000, 0.02, "redis")
    costs.adopt_tiers(other)
    assert costs.save_s(1_000_000, "redis") == pytest.approx(0.02)
    assert costs.save_s(1_000_000) == pytest.approx(0.001)


def test_nothing_is_learned_from_nothing() -> None:
    """No work, or no time: the model stays empty."""
    costs = CostModel()
    costs.observe_prefill(0, 100, 1.0)
    costs.observe_prefill(100, 0, 0.0)
    costs.observe_decode_step(0, 0, 1.0)
    costs.observe_save(0, 1.0, "host")
    costs.observe_restore(1000, 0.0, "host")
    assert msgspec.structs.replace(costs.record(), tier=None) == CostRecord()


def test_a_record_goes_on_where_it_ended() -> None:
    """Through JSON and back, costs and confidences are the same, and learn alike."""
    costs = taught()
    content = msgspec.json.encode(costs.record())
    again = CostModel.from_record(msgspec.json.decode(content, type=CostRecord))
    assert again.record() == costs.record()
    assert again.prefill_s(777, 333) == costs.prefill_s(777, 333)
    assert again.save_s(7_000_000) == costs.save_s(7_000_000)
    assert again.restore_confidence(10**9) == costs.restore_confidence(10**9)
    for model in (costs, again):
        model.observe_prefill(100, 100, 0.7)
    assert again.prefill_s(777, 333) == pytest.approx(costs.prefill_s(777, 333))
