"""How policies fare as KV memory gets scarce, in virtual time.

    python examples/pressure_sweep.py [--quick] [--workload generated claude weka PATH]

A fixed number of agents is live at any time; KV capacity is their working set divided
by the pressure. Every policy replays the same sessions in the same orders on a slow
CPU, on a GPU with PCIe and on one whose link (10 GbE) is slower than its prefill. A
third of the sessions, by the hash of their ids, is kept out of tuning and reported
apart. The verdict says where ``auto`` is best, and by how much it is not. ``--study``
replays the sessions of the first policy study at its two settings.

Needs no recordings for the generated workload; the others are looked for in
``../shared/traces``, or named. Ctrl-C prints what is there.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pressure.crew import Point, run_all
from pressure.document import as_document
from pressure.plan import (
    CHANGING,
    LIVE,
    LIVE_ON,
    PRESSURES,
    Wish,
    every_policy,
    find_points,
    jobs_for,
)
from pressure.study import study_points
from pressure.tables import print_study, print_sweep
from pressure.workloads import SHARES

from kvalet.backends import BackendError
from kvalet.runtime.traces import TraceError
from kvalet.scheduler import InvalidSetting

RECORDINGS = Path(__file__).parents[2] / "shared" / "traces"
ACCELERATORS = ("smollm2-cpu", "h100-pcie", "h100-10gbe")
QUICK_PRESSURES = (0.5, 2.0)
SEEDS, QUICK_SEEDS = 4, 3


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    options = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as good as Ctrl-C
    policies = words(options.policies) or every_policy()
    try:
        points = points_for(options)
        jobs = jobs_for(points, policies, options.seeds)
    except (TraceError, BackendError, InvalidSetting) as problem:
        print(f"pressure_sweep: {problem}", file=sys.stderr)
        return 2
    results = run_all(points, jobs, options.jobs, say)
    show = print_study if options.study else print_sweep
    claims = show(points, results, policies)
    if options.json is not None:
        document = as_document(points, results, policies, claims)
        options.json.write_bytes(msgspec.json.encode(document) + b"\n")
    if results.interrupted:
        return 130
    return 1 if results.failures else 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--workload", nargs="+", help="generated, claude, weka, or paths of traces")
    add("--accelerators", nargs="+", help="names; A>B becomes B half-way")
    add("--pressures", nargs="+", type=float, help="working set ÷ capacity")
    add("--policies", nargs="+", help="by default all, with their tier")
    add("--seeds", type=int, help=f"orders of the sessions ({SEEDS})")
    add("--share", choices=[*SHARES, "all"], help="all, or tuned alone with --quick")
    add("--sessions", type=int, help="at most so many of each workload")
    add("--live", type=int, help=f"live sessions ({LIVE}; {LIVE_ON})")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    add("--quick", action="store_true", help="fewer pressures and orders")
    add("--json", type=Path, metavar="FILE", help="where to write everything")
    add("--study", type=Path, metavar="STEPS.jsonl", help="replay the study instead")
    add("--change-link", action="store_true", help=f"also {CHANGING}")
    add("--traces", type=Path, default=RECORDINGS, help="where recordings are")
    options = parser.parse_args()
    quick = options.quick
    options.pressures = options.pressures or (QUICK_PRESSURES if quick else PRESSURES)
    options.seeds = options.seeds or (QUICK_SEEDS if quick else SEEDS)
    options.share = options.share or ("tuned" if quick else "all")
    if min(options.pressures) <= 0:
        parser.error("--pressures must be above zero")
    if options.seeds < 2:
        parser.error("--seeds must be at least 2: one order has no interval")
    for name in ("sessions", "live", "jobs"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return options


def points_for(options: argparse.Namespace) -> list[Point]:
    """Return what to sweep over."""
    if options.study:
        return study_points(options.study)
    wish = Wish(
        workloads=words(options.workload) or None,
        recordings=options.traces,
        shares=SHARES if options.share == "all" else (options.share,),
        accelerators=words(options.accelerators) or ACCELERATORS,
        pressures=options.pressures,
        live=options.live,
        sessions=options.sessions,
        change_link=options.change_link,
    )
    return find_points(wish, say)


def words(given: Sequence[str] | None) -> list[str]:
    """Return names that were given one by one, or by comma.

    >>> words(["auto,keep", "park"])
    ['auto', 'keep', 'park']
    """
    return [word for text in given or () for word in text.split(",") if word]


def say(text: str) -> None:
    """Tell how it goes."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
