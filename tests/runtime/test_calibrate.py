"""Calibrating: what is true of an accelerator is found out, in time, and left clean."""

from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from kvalet.backends import SimulatedBackend
from kvalet.backends.accelerators import ACCELERATORS, Accelerator
from kvalet.backends.llama import LlamaBackend
from kvalet.runtime.calibrate import Calibration, calibrate
from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.errors import WrongInput
from kvalet.scheduler.breakeven import break_even, pays_from_tokens
from kvalet.state_store import MemoryStore


def simulated(
    accelerator: Accelerator, *, slots: int = 2, context_tokens: int = 32_768
) -> SimulatedBackend:
    """Return a backend with that much context on each slot."""
    return SimulatedBackend(
        accelerator=accelerator,
        name="test",
        slots=slots,
        kv_tokens=slots * context_tokens,
        context_tokens=context_tokens,
    )


def found_on(backend: SimulatedBackend, budget_s: float = 45.0) -> Calibration:
    """Calibrate in virtual time; slots and store are empty afterwards."""

    async def main() -> Calibration:
        store = MemoryStore(None)
        found = await calibrate(backend, store, budget_s=budget_s)
        assert (await store.stat()).states == 0
        assert [len(backend.held_ids(slot)) for slot in range(2)] == [0, 0]
        return found

    return run_in_virtual_time(main())


# ---- in virtual time -----------------------------------------------------------------


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_constant_is_recovered(name: str) -> None:
    """Within three per cent, or of a term that hardly counts, of the whole cost."""
    true = ACCELERATORS[name]
    costs = found_on(simulated(true)).costs
    for new, context in ((64, 0), (512, 0), (256, 8192), (30_000, 0)):
        assert costs.prefill_s(new, context) == pytest.approx(
            true.prefill_s(new, context), rel=0.03
        )
        assert costs.prefill_confidence(new, context) > 0.9
    for sequences, context in ((1, 500), (2, 4000), (4, 60_000)):
        assert costs.decode_step_s(sequences, context) == pytest.approx(
            true.step_s(sequences, context), rel=0.05
        )
    for nbytes in (3_000_000, 10**9):
        save_s = true.copy_setup_s + nbytes / true.save_bytes_per_s
        restore_s = true.copy_setup_s + nbytes / true.restore_bytes_per_s
        assert costs.save_s(nbytes, "host") == pytest.approx(save_s, rel=0.03)
        assert costs.restore_s(nbytes, "host") == pytest.approx(restore_s, rel=0.03)
    token_s, context_s, _ = costs.prefill.coefficients
    assert token_s == pytest.approx(true.prefill_token_s, rel=0.03)
    assert context_s == pytest.approx(true.prefill_context_s, rel=0.03)


@pytest.mark.parametrize("budget_s", [5.0, 45.0])
def test_the_budget_of_time_is_kept(budget_s: float) -> None:
    """With little time, less is measured, but everything is."""
    found = found_on(simulated(Accelerator()), budget_s)
    assert found.seconds < 1.1 * budget_s
    assert found.costs.decode_step_s(2, 1000) is not None
    assert found.costs.restore_s(1000) is not None


def test_a_slow_accelerator_is_measured_on_less() -> None:
    """A tenth of a second a token: shorter contexts, and still the truth."""
    true = replace(Accelerator(), prefill_token_s=0.1, decode_step_s=0.2)
    found = found_on(simulated(true))
    assert found.longest_tokens <= 128
    assert found.seconds < 60.0
    assert found.costs.prefill_s(100, 0) == pytest.approx(
        true.prefill_s(100, 0), rel=0.05
    )


def test_one_that_is_too_slow_is_told_so() -> None:
    """Two seconds a token is no work for a minute."""
    with pytest.raises(WrongInput, match="too long to calibrate"):
        found_on(simulated(replace(Accelerator(), prefill_token_s=2.0)))


def test_parking_never_pays_on_a_slow_link() -> None:
    """Measured, not assumed: ten times slower to move than to compute."""
    link = replace(
        ACCELERATORS["study-slow"], save_bytes_per_s=2e8, restore_bytes_per_s=2e8
    )
    found = found_on(simulated(link))
    assert found.bytes_per_token == link.bytes_per_token
    assert (
        pays_from_tokens(
            found.costs, limit_tokens=32_768, bytes_per_token=found.bytes_per_token
        )
        is None
    )


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (simulated(Accelerator(), slots=1), "two slots.* has 1 slots"),
        (simulated(Accelerator(), context_tokens=300), "at least 512 tokens, not 300"),
    ],
)
def test_a_backend_that_is_too_small(backend: SimulatedBackend, reason: str) -> None:
    """One slot, or no room for two sizes: one sentence says so."""
    with pytest.raises(WrongInput, match=reason):
        found_on(backend)


# ---- in real time --------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_real_engine_with_a_tiny_model(tiny_gguf: Path) -> None:
    """Everything is measured; copies are worth their while; the share of time rises."""
    backend = await LlamaBackend.start(model_path=tiny_gguf, context_tokens=1024)
    shares = list[float]()
    async with aclosing(backend):
        found = await calibrate(
            backend,
            MemoryStore(None),
            budget_s=3.0,
            progress=lambda share, what: shares.append(share),
        )
    assert found.longest_tokens == 768
    assert shares == sorted(shares)
    assert found.costs.prefill_s(500, 0) is not None
    assert found.costs.decode_step_s(2, 500) is not None
    assert 0.0 < found.costs.save_confidence(100_000) <= 1.0
    assert 0.0 < found.costs.restore_confidence(100_000) <= 1.0


@pytest.mark.model
@pytest.mark.asyncio
async def test_the_default_model(default_model: Path) -> None:
    """On any machine: a batch costs less than its parts, a copy less than computing."""
    backend = await LlamaBackend.start(model_path=default_model, context_tokens=2048)
    async with aclosing(backend):
        found = await calibrate(backend, MemoryStore(None), budget_s=12.0)
    costs = found.costs
    alone_s, pair_s = costs.decode_step_s(1, 500), costs.decode_step_s(2, 1000)
    assert alone_s is not None
    assert pair_s is not None
    assert pair_s < 2.5 * alone_s
    weighed = break_even(
        costs, context_tokens=1000, bytes_per_token=found.bytes_per_token
    )
    assert weighed is not None
    assert weighed.moving_s < weighed.prefill_s / 3
