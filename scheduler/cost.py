"""What work on one backend costs, in seconds, learned from what was measured.

    prefill       new * (a + b * (context + new / 2)) + setup
    decode step   a + b * sequences + c * context of all sequences together
    save, restore bytes / rate + setup, for each tier of the store by itself

The forms are those of a transformer: every new token passes through the weights once
and looks at all tokens before it. The constants are nobody's but this backend's. None
means that nothing is known yet, and callers have to say what they do then.

    >>> costs = CostModel()
    >>> costs.save_s(50_000_000) is None
    True
    >>> costs.observe_save(1_000_000, 0.001, "host")
    >>> round(costs.save_s(50_000_000), 9)
    0.05
"""

from typing import Final, Self

import msgspec

from .recursive_fit import FitRecord, RecursiveFit

# How deep a context may be before attention costs as much again as the rest, for a
# start: half of the cost at half of that. Only a scale for what is not known yet:
# measured were 3,400 tokens for a model of 135M, large ones have ten times that.
_ATTENTION_TOKENS: Final = 1024.0

_PREFILL_FLOORS: Final = (0.0, _ATTENTION_TOKENS, 0.0)
_DECODE_FLOORS: Final = (0.0, 0.0, _ATTENTION_TOKENS)
_COPY_FLOORS: Final = (0.0, 0.0, 0.0)


class CostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that a model has learned, as plain data; ``tier`` is the last saved to."""

    prefill: FitRecord | None = None
    decode_step: FitRecord | None = None
    saves: dict[str, FitRecord] = {}
    restores: dict[str, FitRecord] = {}
    tier: str | None = None


class CostModel:
    """The costs of one backend: ask with ``…_s``, teach with ``observe_…``.

    The fits themselves are public, to be read: coefficients (in seconds, in the order
    of the forms above), spread (relative), observations.
    """

    __slots__ = ("decode_step", "prefill", "restores", "saves", "tier")

    def __init__(self) -> None:
        self.prefill = RecursiveFit(floors=_PREFILL_FLOORS)
        self.decode_step = RecursiveFit(floors=_DECODE_FLOORS)
        self.saves: dict[str, RecursiveFit] = {}
        self.restores: dict[str, RecursiveFit] = {}
        self.tier: str | None = None

    @classmethod
    def from_record(cls, record: CostRecord) -> Self:
        """Go on where *record* ended; raise InvalidSetting if it makes no sense."""
        costs = cls()
        if record.prefill is not None:
            costs.prefill = RecursiveFit.from_record(
                record.prefill, floors=_PREFILL_FLOORS
            )
        if record.decode_step is not None:
            costs.decode_step = RecursiveFit.from_record(
                record.decode_step, floors=_DECODE_FLOORS
            )
        costs.saves = _copies(record.saves)
        costs.restores = _copies(record.restores)
        costs.tier = record.tier
        return costs

    def record(self) -> CostRecord:
        """Return all that was learned, as plain data."""
        return CostRecord(
            prefill=self.prefill.record(),
            decode_step=self.decode_step.record(),
            saves=_records(self.saves),
            restores=_records(self.restores),
            tier=self.tier,
        )

    # ---- asking ----------------------------------------------------------------------

    def prefill_s(self, new_tokens: int, context_tokens: int) -> float | None:
        """Return the seconds to compute *new_tokens* behind *context_tokens*."""
        if new_tokens < 1:
            return 0.0
        return self.prefill.cost(_prefill(new_tokens, context_tokens))

    def decode_step_s(self, sequences: int, context_tokens: int) -> float | None:
        """Return the seconds of one step of a batch with so much context in all."""
        if sequences < 1:
            return 0.0
        return self.decode_step.cost((1.0, sequences, context_tokens))

    def save_s(self, nbytes: int, tier: str | None = None) -> float | None:
        """Return the seconds to copy out that much; by default to the latest tier."""
        return _copy_s(self.saves, nbytes, tier or self.tier)

    def restore_s(self, nbytes: int, tier: str | None = None) -> float | None:
        """Return the seconds to copy in that much; by default from the latest tier."""
        return _copy_s(self.restores, nbytes, tier or self.tier)

    def prefill_confidence(self, new_tokens: int, context_tokens: int) -> float:
        """Return how far to believe ``prefill_s``, from 0 to 1."""
        return self.prefill.confidence(_prefill(new_tokens, context_tokens))

    def decode_step_confidence(self, sequences: int, context_tokens: int) -> float:
        """Return how far to believe ``decode_step_s``, from 0 to 1."""
        return self.decode_step.confidence((1.0, sequences, context_tokens))

    def save_confidence(self, nbytes: int, tier: str | None = None) -> float:
        """Return how far to believe ``save_s``, from 0 to 1."""
        return _copy_confidence(self.saves, nbytes, tier or self.tier)

    def restore_confidence(self, nbytes: int, tier: str | None = None) -> float:
        """Return how far to believe ``restore_s``, from 0 to 1."""
        return _copy_confidence(self.restores, nbytes, tier or self.tier)

    # ---- teaching --------------------------------------------------------------------

    def observe_prefill(
        self, new_tokens: int, context_tokens: int, seconds: float
    ) -> None:
        """Learn what a prefill took; one of nothing, or of no time, teaches nothing."""
        if new_tokens > 0:
            self.prefill.observe(_prefill(new_tokens, context_tokens), seconds)

    def observe_decode_step(
        self, sequences: int, context_tokens: int, seconds: float
    ) -> None:
        """Learn what one step took, as the mean over a decode."""
        if sequences > 0:
            self.decode_step.observe((1.0, sequences, context_tokens), seconds)

    def observe_save(self, nbytes: int, seconds: float, tier: str) -> None:
        """Learn what it took to copy out and store a state."""
        _observe_copy(self.saves, nbytes, seconds, tier)
        self.tier = tier

    def observe_restore(self, nbytes: int, seconds: float, tier: str) -> None:
        """Learn what it took to fetch a state and copy it in."""
        _observe_copy(self.restores, nbytes, seconds, tier)
        if self.tier not in self.saves:  # where states go now is what counts
            self.tier = tier

    def adopt_tiers(self, other: "CostModel") -> None:
        """Take over what *other* knows of tiers that are unknown here."""
        self.saves = {**other.saves, **self.saves}
        self.restores = {**other.restores, **self.restores}


def _prefill(new_tokens: int, context_tokens: int) -> tuple[float, float, float]:
    return new_tokens, new_tokens * (context_tokens + new_tokens / 2), 1.0


def _observe_copy(
    fits: dict[str, RecursiveFit], nbytes: int, seconds: float, tier: str
) -> None:
    if nbytes < 1:
        return
    fit = fits.get(tier)
    if fit is None:
        fit = fits[tier] = RecursiveFit(floors=_COPY_FLOORS)
    fit.observe((nbytes, 0.0, 1.0), seconds)


def _copy_s(
    fits: dict[str, RecursiveFit], nbytes: int, tier: str | None
) -> float | None:
    if nbytes < 1:
        return 0.0
    fit = None if tier is None else fits.get(tier)
    return None if fit is None else fit.cost((nbytes, 0.0, 1.0))


def _copy_confidence(
    fits: dict[str, RecursiveFit], nbytes: int, tier: str | None
) -> float:
    fit = None if tier is None else fits.get(tier)
    return 0.0 if fit is None else fit.confidence((nbytes, 0.0, 1.0))


def _copies(records: dict[str, FitRecord]) -> dict[str, RecursiveFit]:
    return {
        tier: RecursiveFit.from_record(record, floors=_COPY_FLOORS)
        for tier, record in records.items()
    }


def _records(fits: dict[str, RecursiveFit]) -> dict[str, FitRecord]:
    records = {tier: fit.record() for tier, fit in sorted(fits.items())}
    return {tier: record for tier, record in records.items() if record is not None}
