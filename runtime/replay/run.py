"""One trace, several policies, one after the other on the same engine.

Whatever happens, what was measured is kept: a run that is interrupted is summarised as
far as it got, and the report says that it is partial.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import anyio

from ...backends.llama import FetchProgress
from ...scheduler import CostModel, Policy, SchedulerSettings
from ...state_store import open_store
from ..budget import budget_note
from ..costs import load_costs
from ..dispatch import Observer
from ..errors import WrongInput
from ..runtime import Runtime
from ..traces import Trace
from .driver import ReplaySettings, replay_trace
from .engines import Engine, EngineOptions, open_engine
from .measure import Measure
from .report import Report, RunReport, TraceSummary


class Progress:
    """What a replay tells while it runs; this one keeps quiet."""

    def say(self, text: str) -> None:
        """Hear a sentence."""

    def fetched(self, progress: FetchProgress) -> None:
        """Hear how much of the model has arrived."""

    def begin(self, policy: str, turns: int) -> None:
        """Hear that a policy's run begins."""

    def advance(self) -> None:
        """Hear that a turn has ended."""

    def end(self) -> None:
        """Hear that the policy's run is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything that a replay needs besides the trace."""

    engine: EngineOptions
    policies: Sequence[Policy]
    seed: int = 0
    concurrency: int | None = None
    store: str = "memory"
    costs: Path | None = None
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    observer: Callable[[str], Observer] | None = None


class Replay:
    """A replay in progress; ``report`` may be asked for at any time."""

    def __init__(
        self, trace: Trace, options: RunOptions, progress: Progress | None = None
    ) -> None:
        self._trace = trace
        self._options = options
        self._progress = progress or Progress()
        self._runs: list[RunReport] = []
        self._slots = 0
        self._context_tokens = 0
        self._complete = False

    @property
    def report(self) -> Report:
        """What has been found so far."""
        trace = self._trace
        return Report(
            partial=not self._complete,
            kvalet=version("kvalet"),
            seed=self._options.seed,
            backend=self._options.engine.backend,
            slots=self._slots,
            context_tokens=self._context_tokens,
            trace=TraceSummary(
                sessions=len(trace.sessions),
                steps=trace.step_count,
                tools=trace.tool_count,
                input_tokens=trace.input_tokens,
                output_tokens=trace.output_tokens,
                flags={str(flag): count for flag, count in trace.flags().items()},
                note=trace.header.source.note,
            ),
            runs=tuple(self._runs),
        )

    async def run(self) -> None:
        """Run every policy; raises what the engine raises."""
        options = self._options
        async with open_engine(
            self._trace, options.engine, self._progress.fetched
        ) as engine:
            self._trace = engine.trace
            self._slots = engine.backend.capabilities.slots
            self._context_tokens = engine.backend.capabilities.context_tokens
            for note in engine.notes:
                self._progress.say(note)
            for policy in options.policies:
                await self._run_policy(engine, policy)
        self._complete = True

    def _costs(self, engine: Engine) -> CostModel | None:
        """Return the measured costs to start from, read anew for each policy."""
        path = self._options.costs
        if path is None:
            return None
        return load_costs(path, backend=engine.backend.capabilities.identity)

    async def _run_policy(self, engine: Engine, policy: Policy) -> None:
        options, progress = self._options, self._progress
        backend = engine.endless if policy.traits.unlimited else engine.backend
        if backend is None:
            raise WrongInput(
                f"policy {policy.name!r} needs memory without end, which only "
                "--backend simulated has"
            )
        costs = self._costs(engine)
        measure = Measure()
        observers: list[Observer] = [measure]
        if options.observer is not None:
            observers.append(options.observer(policy.name))
        settings = ReplaySettings(
            seed=options.seed,
            vocabulary=engine.vocabulary,
            concurrency=options.concurrency,
        )
        progress.begin(policy.name, engine.trace.step_count)
        began_s = anyio.current_time()
        ended_s: float | None = None
        store = await open_store(
            options.store, environment=os.environ, say=progress.say
        )
        note = await budget_note(store, backend.capabilities)
        if note is not None and not self._runs:
            progress.say(note)
        try:
            async with (
                aclosing(store),
                Runtime(
                    backend,
                    store=store,
                    policy=policy,
                    settings=options.scheduler,
                    costs=costs,
                    observers=observers,
                ) as runtime,
            ):
                await replay_trace(
                    engine.trace, runtime, measure, settings, progress.advance
                )
                ended_s = anyio.current_time()
        finally:
            makespan_s = (ended_s or anyio.current_time()) - began_s
            self._runs.append(
                measure.summary(policy=policy.name, makespan_s=makespan_s)
            )
            progress.end()
