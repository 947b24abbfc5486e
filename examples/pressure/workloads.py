"""What a sweep replays: families of sessions, made to an accelerator's measure.

A family is a session that nobody spawned and all its subagents. The working set is the
number of live families times the mean context after a step, each step counted once; a
pressure is the working set divided by the accelerator's KV tokens. A family with a
context that does not fit at the hardest pressure is left out at all of them, so that
every point of a sweep has the same work to do.
"""

import random
import statistics
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from kvalet.runtime.replay.complete import completed
from kvalet.runtime.traces import (
    GeneratorSettings,
    Header,
    Trace,
    TraceSession,
    context_tokens,
    generate,
    read_traces,
    scaled_to_fit,
)

GENERATED = "generated"
RECORDED = {"claude": "agentcgroup", "weka": "weka/traces"}
"""Workloads that are folders of recorded traces."""

SHARES = ("tuned", "held-out")
GENERATOR_SEED = 1
GENERATED_SESSIONS = 72
ROUNDS_OF_LIVE = 2
"""A replay has about so many families for each one that is live."""

# Sessions of days and of hundreds of thousands of tokens would be all that a sweep
# does; these limits leave two thirds of the Weka recordings.
LONGEST_STEPS = 120
LONGEST_TOKENS = 200_000

Family = tuple[TraceSession, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Families to choose from, and what was done to them."""

    name: str
    header: Header
    families: tuple[Family, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A workload on one accelerator, of which ``live`` families run at any time."""

    name: str
    share: str
    accelerator: str
    live: int
    header: Header
    families: tuple[Family, ...]
    working_set_tokens: float
    notes: tuple[str, ...]

    @property
    def description(self) -> str:
        """What it is, and below that what was done to it."""
        first = (
            f"{self.name}, {self.share}, {self.accelerator}: {len(self.families)} "
            f"sessions, {self.live} live, working set {self.working_set_tokens:,.0f} "
            "tokens (live sessions times the mean context over steps)"
        )
        return "\n  ".join((first, *self.notes))

    def kv_tokens(self, pressure: float) -> int:
        """Return the capacity at a pressure."""
        return round(self.working_set_tokens / pressure)

    def ordered(self, seed: int) -> Trace:
        """Return the trace of one replay: each round is all families in a new order."""
        rounds = max(1, round(ROUNDS_OF_LIVE * self.live / len(self.families)))
        sessions: list[TraceSession] = []
        for number in range(rounds):
            families = list(self.families)
            random.Random(f"{seed}/{number}").shuffle(families)
            for family in families:
                sessions.extend(_renamed(session, f"#{number}") for session in family)
        return Trace(header=self.header, sessions=tuple(sessions))


def load_workload(name: str, recordings: Path, sessions: int | None) -> Workload:
    """Return a workload by its name or path; raise TraceError where there is none.

    *sessions* is how many are generated at most, or taken of what was recorded.
    """
    if name == GENERATED:
        count = GENERATED_SESSIONS if sessions is None else sessions
        trace = generate(GeneratorSettings(seed=GENERATOR_SEED, sessions=count))
    else:
        path = recordings / RECORDED[name] if name in RECORDED else Path(name)
        trace = read_traces([path])
    families = _families(_without_hashes(completed(trace)))
    usual = tuple(family for family in families if _is_usual(family))
    notes = list[str]()
    if left_out := len(families) - len(usual):
        notes.append(
            f"{left_out} of {len(families)} sessions left out: more than "
            f"{LONGEST_STEPS} steps or {LONGEST_TOKENS:,} tokens"
        )
    if sessions is not None and sessions < len(usual):
        notes.append(f"the first {sessions} of {len(usual)} sessions")
    return Workload(
        name=name,
        header=trace.header,
        families=usual[:sessions],
        notes=tuple(notes),
    )


def share_of(workload: Workload, share: str) -> Workload:
    """Return a third of the sessions, chosen by the hash of their ids, or the rest."""
    held_out = share == "held-out"
    families = tuple(
        family
        for family in workload.families
        if (zlib.crc32(family[0].id.encode()) % 3 == 0) == held_out
    )
    return replace(workload, families=families)


def fitted(
    workload: Workload,
    *,
    share: str,
    accelerator: str,
    longest_tokens: int | None,
    live: int,
    hardest_pressure: float,
) -> Load:
    """Scale contexts down to *longest_tokens*, leave out what can never fit."""
    notes = list(workload.notes)
    families = workload.families
    if families and longest_tokens is not None:
        families, scale = _scaled(workload.header, families, longest_tokens)
        notes.append(f"tokens x{scale:.4f}, for contexts of {longest_tokens:,}")
    families, working_set_tokens = _that_fit(families, live, hardest_pressure)
    if left_out := len(workload.families) - len(families):
        notes.append(
            f"{left_out} of {len(workload.families)} sessions left out: too long for "
            f"pressure {hardest_pressure:g}"
        )
    return Load(
        name=workload.name,
        share=share,
        accelerator=accelerator,
        live=live,
        header=workload.header,
        families=families,
        working_set_tokens=working_set_tokens,
        notes=tuple(notes),
    )


def _families(trace: Trace) -> tuple[Family, ...]:
    children: dict[str, list[TraceSession]] = {}
    for session in trace.sessions:
        if session.parent is not None:
            children.setdefault(session.parent, []).append(session)

    def family(session: TraceSession) -> Family:
        below = (family(child) for child in children.get(session.id, ()))
        return (session, *(member for members in below for member in members))

    return tuple(family(root) for root in trace.sessions if root.parent is None)


def _without_hashes(trace: Trace) -> Trace:
    """Leave out what replays don't read and what every process would be sent."""
    return Trace(
        header=trace.header,
        sessions=tuple(
            replace(
                session,
                steps=tuple(
                    msgspec.structs.replace(step, hash_ids=None)
                    for step in session.steps
                ),
            )
            for session in trace.sessions
        ),
    )


def _is_usual(family: Family) -> bool:
    return (
        max(len(session.steps) for session in family) <= LONGEST_STEPS
        and _longest_tokens(family) <= LONGEST_TOKENS
    )


def _longest_tokens(family: Family) -> int:
    return max(session.longest_context_tokens for session in family)


def _scaled(
    header: Header, families: Sequence[Family], longest_tokens: int
) -> tuple[tuple[Family, ...], float]:
    trace = Trace(
        header=header,
        sessions=tuple(session for family in families for session in family),
    )
    small = scaled_to_fit(trace, context_tokens=longest_tokens)
    scale = small.longest_context_tokens / trace.longest_context_tokens
    return _families(completed(small)), scale


def _that_fit(
    families: tuple[Family, ...], live: int, hardest_pressure: float
) -> tuple[tuple[Family, ...], float]:
    """Leave out families until all others fit; without them the capacity falls too."""
    while families:
        steps = (s for family in families for session in family for s in session.steps)
        mean_tokens = statistics.fmean(context_tokens(step) for step in steps)
        least_tokens = round(live * mean_tokens / hardest_pressure)
        kept = tuple(f for f in families if _longest_tokens(f) <= least_tokens)
        if len(kept) == len(families):
            return families, live * mean_tokens
        families = kept
    return (), 0.0


def _renamed(session: TraceSession, suffix: str) -> TraceSession:
    """Return the session under another name, to be replayed once more.

    All arrive at once, in their order: a sweep is about how many are live.
    """
    steps = tuple(
        msgspec.structs.replace(
            step,
            session=session.id + suffix,
            deps=(),
            tools=tuple(
                msgspec.structs.replace(
                    tool, child=None if tool.child is None else tool.child + suffix
                )
                for tool in step.tools
            ),
        )
        for step in session.steps
    )
    return replace(
        session,
        id=session.id + suffix,
        parent=None if session.parent is None else session.parent + suffix,
        arrival_ms=0,
        steps=steps,
    )
