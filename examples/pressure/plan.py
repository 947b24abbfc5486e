"""Which replays make a sweep: loads, their points, and the policies at each.

A policy with memory without end does the same at every pressure, so it has a point of
its own, of pressure 0, and runs once for each load and order.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvalet.scheduler import POLICY_NAMES, parse_policy

from .crew import Job, Point
from .one_run import UNLIMITED_TOKENS, parse_accelerators
from .workloads import GENERATED, RECORDED, Load, fitted, load_workload, share_of

CHANGING = "h100-pcie>h100-10gbe"
CHANGING_PRESSURE = 2.0
PRESSURES = (0.5, 1.0, 1.5, 2.0, 4.0)

# A small machine holds short contexts, and fewer agents keep it busy.
LIVE, LIVE_ON = 24, {"smollm2-cpu": 12}
LONGEST_TOKENS = {"smollm2-cpu": 8_192}

_HOLD = {"hold:SECONDS": "hold:2"}
"""With which parameter a policy that needs one takes part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to sweep; None of ``workloads`` are all those whose recordings are there.

    With ``change_link``, an accelerator whose link slows down half-way takes part.
    """

    workloads: Sequence[str] | None
    recordings: Path
    shares: Sequence[str]
    accelerators: Sequence[str]
    pressures: Sequence[float]
    live: int | None
    sessions: int | None
    change_link: bool


def every_policy() -> list[str]:
    """Return all policies that can be named, each with the tier that ``auto`` has.

    A rule that was published for an engine without one may be given it by ``:tier``;
    without, it would be judged for what it lacks. Other flags are left out.
    """
    names = [_HOLD.get(name, name) for name in POLICY_NAMES]
    tiered = [name.replace("[:tier]", ":tier") for name in names]
    return [re.sub(r"\[[^]]*\]", "", name) for name in tiered]


def find_points(wish: Wish, say: Callable[[str], None]) -> list[Point]:
    """Return every point, each load's in the order of the pressures.

    Raises TraceError where a workload can't be read, BackendError where an accelerator
    is unknown.
    """
    accelerators = [*wish.accelerators, *([CHANGING] if wish.change_link else [])]
    for accelerator in accelerators:
        parse_accelerators(accelerator)
    points: list[Point] = []
    for load in _loads(wish, accelerators, say):
        if load.families:
            points += _points_of(load, wish)
        else:
            say(
                f"{load.name}, {load.share}, on {load.accelerator} is left out: no "
                f"session fits with {load.live} live ones"
            )
    return points


def jobs_for(points: Sequence[Point], policies: Sequence[str], seeds: int) -> list[Job]:
    """Return each replay once; raise InvalidSetting where a policy is unknown."""
    unlimited = {name: parse_policy(name).traits.unlimited for name in policies}
    return [
        Job(point=number, policy=policy, seed=seed)
        for seed in range(seeds)
        for number, point in enumerate(points)
        for policy in policies
        if point.takes_all or unlimited[policy] == (not point.pressure)
    ]


def _loads(
    wish: Wish, accelerators: Sequence[str], say: Callable[[str], None]
) -> list[Load]:
    loads: list[Load] = []
    for name in wish.workloads or (GENERATED, *RECORDED):
        if wish.workloads is None and name in RECORDED and not wish.recordings.is_dir():
            say(f"{name} is left out: there are no recordings in {wish.recordings}")
            continue
        workload = load_workload(name, wish.recordings, wish.sessions)
        loads += [
            fitted(
                share_of(workload, share),
                share=share,
                accelerator=accelerator,
                longest_tokens=LONGEST_TOKENS.get(accelerator),
                live=wish.live or LIVE_ON.get(accelerator, LIVE),
                hardest_pressure=max(*PRESSURES, *wish.pressures),
            )
            for share in wish.shares
            for accelerator in accelerators
        ]
    return loads


def _points_of(load: Load, wish: Wish) -> list[Point]:
    pressures = sorted(wish.pressures)
    if wish.change_link and load.accelerator == CHANGING:
        pressures = [CHANGING_PRESSURE]
    endless = Point(load=load, pressure=0.0, kv_tokens=UNLIMITED_TOKENS)
    return [endless] + [
        Point(load=load, pressure=pressure, kv_tokens=load.kv_tokens(pressure))
        for pressure in pressures
    ]
