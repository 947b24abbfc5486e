"""Everything that a sweep found, for a program to read."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from .crew import Point, Results
from .verdict import Claim

SCHEMA = "kvalet.pressure-sweep/1"


def as_document(
    points: Sequence[Point],
    results: Results,
    policies: Sequence[str],
    claims: Mapping[int, Sequence[Claim]],
) -> dict[str, Any]:
    """Return every outcome by point, policy and order, and the claims by point."""
    return {
        "schema": SCHEMA,
        "kvalet": version("kvalet"),
        "partial": results.interrupted or bool(results.failures),
        "points": [
            {
                "workload": point.load.name,
                "share": point.load.share,
                "accelerator": point.load.accelerator,
                "live": point.load.live,
                "pressure": point.pressure,
                "kv_tokens": point.kv_tokens,
                "runs": {policy: results.runs(number, policy) for policy in policies},
                "claims": claims.get(number, ()),
            }
            for number, point in enumerate(points)
        ],
        "failures": {
            f"{points[job.point].name} {job.policy} order {job.seed}": text
            for job, text in results.failures.items()
        },
    }
