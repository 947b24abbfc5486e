"""What a replay measures: an observer of events, and what the agents saw themselves.

Everything in a report comes from here; nothing is taken from the trace.
"""

from collections import Counter
from dataclasses import dataclass, field

from ...scheduler import (
    Copied,
    CopyFailed,
    DecodeDone,
    DecodeStarted,
    EngineRestarted,
    Event,
    PrefillAdvanced,
    PrefillDone,
    PrefillStarted,
    Released,
    Restored,
    RestoreFailed,
    RestoreStarted,
    SessionId,
    ToolEnded,
    TurnAborted,
    TurnAdmitted,
    TurnSubmitted,
)
from ..turn import Usage
from .report import (
    Accelerator,
    Parks,
    Restores,
    RunReport,
    Summary,
    Tokens,
    ToolSummary,
)


@dataclass(slots=True)
class _Moves:
    count: int = 0
    nbytes: int = 0
    tokens: int = 0
    seconds: float = 0.0
    failed: int = 0

    def add(self, event: Copied | Restored) -> None:
        self.count += 1
        self.nbytes += event.nbytes
        self.tokens += event.kv_tokens
        self.seconds += event.seconds


@dataclass(slots=True)
class _Tool:
    seconds: list[float] = field(default_factory=list[float])
    statuses: Counter[str] = field(default_factory=Counter[str])


class Measure:
    """One run's figures. Call it with every event; ``summary`` makes the report."""

    def __init__(self) -> None:
        self.turns_ended = 0
        self._jobs: list[float] = []
        self._usages: list[Usage] = []
        self._token_gaps: Counter[float] = Counter()
        self._parks = _Moves()
        self._restores = _Moves()
        self._verified = 0
        # Restores ahead of turns that have not come yet, and whether they have ended.
        self._ahead: dict[SessionId, bool] = {}
        self._hidden = self._wasted = 0
        self._tools: dict[str, _Tool] = {}
        self._prefixes: dict[SessionId, int] = {}
        self._kv_tokens: dict[SessionId, int] = {}
        self._units: dict[SessionId, float] = {}
        self._busy_since_s = 0.0
        self._busy_s = 0.0
        self._repeated_s = 0.0
        self._computed_tokens = 0
        self._repeated_tokens = 0
        self._forced = 0
        self._skipped_s = 0.0
        self._turns_begun = 0
        self._restarts = 0

    # ---- what agents saw -------------------------------------------------------------

    def turn_began(self) -> None:
        """Take note of a turn that is about to be asked for."""
        self._turns_begun += 1

    def turn_ended(self, usage: Usage) -> None:
        """Take note of a turn's cost."""
        self._usages.append(usage)
        self.turns_ended += 1

    def tokens_came(self, seconds: float, tokens: int) -> None:
        """Take note of *tokens* that came *seconds* after the ones before them."""
        if tokens:
            self._token_gaps[round(seconds / tokens, 6)] += tokens

    def job_ended(self, seconds: float) -> None:
        """Take note of a session's whole length."""
        self._jobs.append(seconds)

    def skip(self, seconds: float) -> None:
        """Take note of time that was skipped since no session was live."""
        self._skipped_s += seconds

    # ---- what happened ---------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case TurnSubmitted():
                self._prefixes[event.session] = event.prefix_tokens
                self._hidden += self._ahead.pop(event.session, False)
            case PrefillStarted() | DecodeStarted():
                self._begin_unit(event)
            case PrefillAdvanced() | PrefillDone():
                self._end_prefill(event)
            case DecodeDone():
                self._end_unit(event)
                self._kv_tokens[event.session] = event.kv_tokens
            case TurnAborted():
                self._end_unit(event)
            case EngineRestarted():
                self._restarts += 1
            case TurnAdmitted():
                self._forced += event.forced
            case Copied():
                self._parks.add(event)
            case CopyFailed():
                self._parks.failed += 1
            case RestoreStarted():
                if event.ahead:
                    self._ahead[event.session] = False
            case Restored():
                self._restores.add(event)
                if event.session in self._ahead:
                    self._ahead[event.session] = True
            case RestoreFailed():
                self._restores.failed += 1
                self._ahead.pop(event.session, None)
            case Released():
                self._wasted += self._ahead.pop(event.session, None) is not None
            case ToolEnded():
                tool = self._tools.setdefault(event.tool, _Tool())
                tool.seconds.append(event.seconds)
                tool.statuses[event.status] += 1
            case _:
                pass

    def _begin_unit(self, event: PrefillStarted | DecodeStarted) -> None:
        if not self._units:
            self._busy_since_s = event.at_s
        self._units[event.session] = event.at_s

    def _end_unit(self, event: Event) -> float:
        began_s = self._units.pop(event.session, None)
        if began_s is None:
            return 0.0
        if not self._units:
            self._busy_s += event.at_s - self._busy_since_s
        return event.at_s - began_s

    def _end_prefill(self, event: PrefillAdvanced | PrefillDone) -> None:
        seconds = self._end_unit(event)
        computed = event.computed_tokens
        prompt = computed + event.reused_tokens
        # What was never in the KV state is not computed again: new text, and the last
        # token of the previous answer, which was sampled but never read.
        known = min(
            self._prefixes.get(event.session, 0), self._kv_tokens.get(event.session, 0)
        )
        needed = max(1, prompt - max(known, event.reused_tokens))
        repeated = max(0, computed - needed)
        self._computed_tokens += computed
        self._repeated_tokens += repeated
        self._repeated_s += seconds * repeated / computed if computed else 0.0
        if event.verified is not None:
            self._verified += event.verified
            self._restores.failed += not event.verified

    # ---- the report ------------------------------------------------------------------

    def summary(self, *, policy: str, makespan_s: float) -> RunReport:
        """Return everything, ready to be written."""
        usages = self._usages
        return RunReport(
            policy=policy,
            makespan_s=round(makespan_s, 6),
            skipped_s=round(self._skipped_s, 6),
            turns=self.turns_ended,
            lost_turns=self._turns_begun - self.turns_ended,
            job_s=Summary.of(self._jobs),
            turn_s=Summary.of([usage.turn_s for usage in usages]),
            ttft_s=Summary.of([usage.ttft_s for usage in usages]),
            itl_s=Summary.of_counts(self._token_gaps),
            queue_s=Summary.of([usage.queue_s for usage in usages]),
            tokens=Tokens(
                prompt=sum(usage.prompt_tokens for usage in usages),
                prefilled=self._computed_tokens,
                reprefilled=self._repeated_tokens,
                reused=sum(usage.reused_tokens for usage in usages),
                restored=self._restores.tokens,
                decoded=sum(usage.output_tokens for usage in usages),
            ),
            accelerator=Accelerator(
                busy_s=round(self._busy_s, 6),
                useful_s=round(max(0.0, self._busy_s - self._repeated_s), 6),
            ),
            parks=Parks(
                count=self._parks.count,
                bytes=self._parks.nbytes,
                seconds=round(self._parks.seconds, 6),
                failed=self._parks.failed,
            ),
            restores=Restores(
                count=self._restores.count,
                bytes=self._restores.nbytes,
                seconds=round(self._restores.seconds, 6),
                verified=self._verified,
                failed=self._restores.failed,
                hidden=self._hidden,
                wasted=self._wasted,
            ),
            tools={
                name: ToolSummary.of(tool.seconds, tool.statuses)
                for name, tool in sorted(self._tools.items())
            },
            forced_admissions=self._forced,
            engine_restarts=self._restarts,
        )
