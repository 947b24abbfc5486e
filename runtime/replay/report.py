"""``kvalet.report/1``: what a replay found, as JSON.

Seconds and bytes; quantiles are of what happened, by the nearest-rank rule, so that
every figure is one that was measured. Nothing in it depends on when or where the replay
ran, so the same seed on the simulated backend gives the same bytes.
"""

import contextlib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from ..errors import WrongInput

SCHEMA = "kvalet.report/1"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and quantiles in seconds; None where nothing was measured."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Summarise values."""
        return cls.of_counts(Counter(values))

    @classmethod
    def of_counts(cls, counts: Mapping[float, int]) -> Self:
        """Summarise values that came that many times each."""
        total = sum(counts.values())
        ranked = sorted(counts.items())
        mean = sum(value * count for value, count in ranked) / total if total else None
        return cls(
            count=total,
            mean=_rounded(mean),
            p50=_quantile(ranked, total, 0.50),
            p90=_quantile(ranked, total, 0.90),
            p99=_quantile(ranked, total, 0.99),
            max=_quantile(ranked, total, 1.0),
        )


class ToolSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How long one tool took, and how its calls ended."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    timeouts: int
    errors: int
    cancelled: int
    retries: int | None = None
    """Unknown: a trace does not say which call repeats which."""

    @classmethod
    def of(cls, seconds: Sequence[float], statuses: Mapping[str, int]) -> Self:
        """Summarise the calls of one tool."""
        summary = Summary.of(seconds)
        return cls(
            **msgspec.structs.asdict(summary),
            timeouts=statuses.get("timeout", 0),
            errors=statuses.get("error", 0),
            cancelled=statuses.get("cancelled", 0),
        )


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """``prefilled`` were computed, ``reprefilled`` of them not for the first time."""

    prompt: int
    prefilled: int
    reprefilled: int
    reused: int
    restored: int
    decoded: int


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """``busy_s``: a unit of work ran. ``useful_s``: less the share of re-prefilling.

    The share is by tokens within each prefill. With unlimited KV memory nothing would
    be re-prefilled, so ``useful_s`` is what the same work would then need.
    """

    busy_s: float
    useful_s: float


class Parks(msgspec.Struct, frozen=True, kw_only=True):
    """Copies to the store; seconds include the wait for the slot."""

    count: int
    bytes: int
    seconds: float
    failed: int


class Restores(msgspec.Struct, frozen=True, kw_only=True):
    """Copies back; ``verified``: the engine then really reused all of it.

    Of those that began ahead of their turn, ``hidden`` ended before it came, and
    ``wasted`` left again without it.
    """

    count: int
    bytes: int
    seconds: float
    verified: int
    failed: int
    hidden: int
    wasted: int


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one trace; ``lost_turns`` began and never ended."""

    policy: str
    makespan_s: float
    skipped_s: float
    turns: int
    lost_turns: int
    job_s: Summary
    turn_s: Summary
    ttft_s: Summary
    itl_s: Summary
    queue_s: Summary
    tokens: Tokens
    accelerator: Accelerator
    parks: Parks
    restores: Restores
    tools: dict[str, ToolSummary]
    forced_admissions: int
    engine_restarts: int


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was replayed; ``flags`` counts the steps that carry each quality flag."""

    sessions: int
    steps: int
    tools: int
    input_tokens: int
    output_tokens: int
    flags: dict[str, int]
    note: str | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    schema: str = SCHEMA
    partial: bool
    kvalet: str
    seed: int
    backend: str
    slots: int
    context_tokens: int
    trace: TraceSummary
    runs: tuple[RunReport, ...]


def encode_report(report: Report) -> bytes:
    """Return the report as JSON, indented, in the order of its fields."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def write_report(report: Report, path: Path) -> None:
    """Write the report whole or not at all; raise WrongInput where that can't be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(encode_report(report))
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise WrongInput(
            f"the report {path} can't be written: {error.strerror}"
        ) from error


def check_writable(path: Path) -> None:
    """Raise WrongInput before long work whose report could not be written."""
    if path.is_dir():
        raise WrongInput(f"the report {path} is a folder; name a file")
    if not os.access(path.parent, os.W_OK):
        raise WrongInput(f"the report {path} can't be written: no such folder or right")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _quantile(
    ranked: Sequence[tuple[float, int]], total: int, share: float
) -> float | None:
    """Return the nearest-rank quantile of values with their counts."""
    remaining = max(1, math.ceil(share * total))
    for value, count in ranked:
        remaining -= count
        if remaining <= 0:
            return _rounded(value)
    return None
