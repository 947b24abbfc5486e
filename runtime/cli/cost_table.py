"""A calibration as people read it: a table of costs, and when parking pays.

The sentences are computed from the fitted costs, and say so as plainly where parking
never pays.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from ...scheduler.breakeven import BreakEven, break_even, pays_from_tokens
from ...scheduler.recursive_fit import RecursiveFit
from ..calibrate import Calibration

SCHEMA = "kvalet.calibration/1"

_CONTEXTS = (1024, 4096, 16_384, 65_536)
# From where on, divided by what, is called how; rounding must not give 1,000 ms.
_UNITS = (
    (10_800.0, 3600.0, "h"),
    (300.0, 60.0, "min"),
    (0.9995, 1.0, "s"),
    (0.9995e-3, 1e-3, "ms"),
    (0.9995e-6, 1e-6, "µs"),
)
# Less than this is a rounding error of the fit.
_LEAST_S = 1e-10
# A formula may be read a little beyond what was measured.
_BEYOND = 1.1


def encode_calibration(found: Calibration, backend: str, limit_tokens: int) -> bytes:
    """Return everything as one JSON object; seconds, bytes, shares from 0 to 1."""
    costs = {
        name: {
            "seconds": {
                term: seconds
                for term, seconds in zip(terms, fit.coefficients, strict=True)
                if term
            },
            "confidence": round(confidence, 4),
            "spread": round(fit.spread, 4),
            "observations": fit.observations,
        }
        for name, terms, fit, confidence in _fits(found)
    }
    rows = _weighed(found, limit_tokens)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "backend": backend,
        "tier": found.tier,
        "measured_s": round(found.seconds, 3),
        "samples": found.samples,
        "longest_tokens": found.longest_tokens,
        "bytes_per_token": found.bytes_per_token,
        "costs": costs,
        "pays_from_tokens": _pays_from(found, limit_tokens),
        "break_even": [
            {**msgspec.to_builtins(row), "moving_s": row.moving_s, "pays": row.pays}
            for row in rows
        ],
    }
    return msgspec.json.encode(content)


def print_calibration(
    found: Calibration, backend: str, limit_tokens: int, console: Console
) -> None:
    """Print both tables and the sentences on *console*."""
    console.print(_costs(found, backend), highlight=False)
    console.print(_parking(found, limit_tokens), highlight=False)
    for sentence in sentences(found, limit_tokens):
        console.print(sentence, highlight=False)


def sentences(found: Calibration, limit_tokens: int) -> Iterator[str]:
    """Yield what the figures mean for parking on this backend."""
    longest = _weighed(found, limit_tokens)[-1]
    start = _pays_from(found, limit_tokens)
    if start is None:
        yield (
            f"Parking pays: never. Moving a token takes longer than computing it: at "
            f"{longest.context_tokens:,} tokens, the most that a slot holds, save and "
            f"restore take {_duration(longest.moving_s)}, computing them again "
            f"{_duration(longest.prefill_s)}. Use keep or drop."
        )
        return
    where = "the first token" if start == 1 else f"{start:,} tokens of context"
    yield (
        f"Parking pays from {where} on: from there, save and restore together take "
        "less time than computing the context again."
    )
    for row in _weighed(found, limit_tokens):
        if row.pays:
            yield (
                f"At {row.context_tokens:,} tokens it pays for waits longer than "
                f"{_duration(row.moving_s)}, and spares {_duration(row.prefill_s)} of "
                "computing."
            )
        else:
            yield f"At {row.context_tokens:,} tokens it does not pay."
    yield (
        "All of this holds where somebody else needs the memory; while nobody does, "
        "keeping costs nothing."
    )


# ---- tables --------------------------------------------------------------------------


def _costs(found: Calibration, backend: str) -> Table:
    title = (
        f"{found.samples} measurements in {found.seconds:.0f} s on {_backend(backend)}"
    )
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("cost", "fitted"):
        table.add_column(name)
    for name in ("confidence", "spread"):
        table.add_column(name, justify="right")
    formulas = {
        "prefill": _prefill_formula(found.costs.prefill),
        "decode_step": _decode_formula(found.costs.decode_step),
        "save": _copy_formula(found.costs.saves[found.tier]),
        "restore": _copy_formula(found.costs.restores[found.tier]),
    }
    for name, _, fit, confidence in _fits(found):
        label = name.replace("_", " ")
        if name in ("save", "restore"):
            label = f"{label} ({found.tier})"
        table.add_row(label, formulas[name], f"{confidence:.0%}", f"±{fit.spread:.0%}")
    return table


def _parking(found: Calibration, limit_tokens: int) -> Table:
    table = Table(header_style="bold")
    for name in ("context", "prefill again", "save", "restore", "parking pays"):
        table.add_column(name, justify="right")
    extrapolated = False
    for row in _weighed(found, limit_tokens):
        beyond = row.context_tokens > found.longest_tokens * _BEYOND
        extrapolated |= beyond
        table.add_row(
            f"{row.context_tokens:,}{'*' if beyond else ''}",
            _duration(row.prefill_s),
            _duration(row.save_s),
            _duration(row.restore_s),
            f"waits > {_duration(row.moving_s)}" if row.pays else "never",
        )
    if extrapolated:
        table.caption = f"* by the formula: measured up to {found.longest_tokens:,}"
        table.caption_justify = "left"
    return table


def _prefill_formula(fit: RecursiveFit) -> str:
    token_s, context_s, setup_s = fit.coefficients
    return (
        f"{_duration(token_s)}/token + {_duration(1000 * context_s)}/1k context"
        f"{_setup(setup_s)}"
    )


def _decode_formula(fit: RecursiveFit) -> str:
    step_s, sequence_s, context_s = fit.coefficients
    return (
        f"{_duration(step_s)} + {_duration(sequence_s)}/sequence + "
        f"{_duration(1000 * context_s)}/1k context"
    )


def _copy_formula(fit: RecursiveFit) -> str:
    byte_s, _, setup_s = fit.coefficients
    rate = f"{1e-9 / byte_s:,.2f} GB/s" if byte_s else "at once"
    return f"{rate}{_setup(setup_s)}"


def _setup(seconds: float) -> str:
    return f" + {_duration(seconds)}" if seconds >= _LEAST_S else ""


def _duration(seconds: float) -> str:
    """Return three digits and a unit that people read.

    >>> [_duration(s) for s in (0.0, 12.34e-6, 0.9999, 250.0, 4260.0)]
    ['0', '12.3 µs', '1 s', '250 s', '71 min']
    """
    if seconds < _LEAST_S:
        return "0"
    for least, unit, name in _UNITS:
        if seconds >= least:
            return f"{float(f'{seconds / unit:.3g}'):,g} {name}"
    return f"{seconds / 1e-9:.3g} ns"


def _backend(identity: str) -> str:
    """Return *identity* with its checksums cut to what people compare."""
    return re.sub(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b", r"\1…", identity)


# ---- figures -------------------------------------------------------------------------


def _fits(
    found: Calibration,
) -> Iterator[tuple[str, tuple[str, str, str], RecursiveFit, float]]:
    """Yield each cost: name, terms, fit, confidence at the longest context."""
    costs, longest = found.costs, found.longest_tokens
    nbytes = int(longest * found.bytes_per_token)
    yield (
        "prefill",
        ("per_token", "per_token_and_context_token", "setup"),
        costs.prefill,
        costs.prefill_confidence(longest, 0),
    )
    yield (
        "decode_step",
        ("step", "per_sequence", "per_context_token"),
        costs.decode_step,
        costs.decode_step_confidence(1, longest),
    )
    copy = ("per_byte", "", "setup")
    tier = found.tier
    yield "save", copy, costs.saves[tier], costs.save_confidence(nbytes, tier)
    yield "restore", copy, costs.restores[tier], costs.restore_confidence(nbytes, tier)


def _weighed(found: Calibration, limit_tokens: int) -> list[BreakEven]:
    """Return parking against computing at some contexts, at last the longest."""
    contexts = [tokens for tokens in _CONTEXTS if tokens < limit_tokens]
    weighed = (
        break_even(
            found.costs,
            context_tokens=tokens,
            bytes_per_token=found.bytes_per_token,
            tier=found.tier,
        )
        for tokens in [*contexts, limit_tokens]
    )
    return [row for row in weighed if row is not None]


def _pays_from(found: Calibration, limit_tokens: int) -> int | None:
    return pays_from_tokens(
        found.costs,
        limit_tokens=limit_tokens,
        bytes_per_token=found.bytes_per_token,
        tier=found.tier,
    )
