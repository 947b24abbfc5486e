"""A carrier of plans for tests: it answers every entry of a plan, when told to.

It keeps what is in progress per slot, and so notices at once if a plan puts two units
of work on one slot, or starts something that was not ready.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvalet.scheduler import (
    CallId,
    Capacity,
    Copied,
    CopyFailed,
    CopyStarted,
    DecodeDone,
    DecodeStarted,
    Event,
    Plan,
    Policy,
    PrefillDone,
    PrefillStarted,
    Restored,
    RestoreFailed,
    RestoreStarted,
    Scheduler,
    SchedulerSettings,
    SessionClosed,
    SessionId,
    SessionOpened,
    ToolEnded,
    ToolStarted,
    TurnAborted,
    TurnSubmitted,
)

Work = PrefillStarted | DecodeStarted | CopyStarted | RestoreStarted


@dataclass
class Carrier:
    """Drives one scheduler; ``busy`` maps a slot to the work in progress there."""

    policy: Policy
    slots: int = 2
    kv_tokens: int = 200
    context_tokens: int = 100
    settings: SchedulerSettings = field(default_factory=SchedulerSettings)
    now_s: float = 0.0
    busy: dict[int, Work] = field(default_factory=dict[int, Work])
    plans: list[Plan] = field(default_factory=list[Plan])
    on_plan: Callable[[Plan], None] | None = None

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            capacity=Capacity(
                slots=self.slots,
                kv_tokens=self.kv_tokens,
                context_tokens=self.context_tokens,
            ),
            policy=self.policy,
            settings=self.settings,
        )

    # ---- what agents do --------------------------------------------------------------

    def open(
        self, name: str, parent: str | None = None, forked_tokens: int = 0
    ) -> None:
        self._apply(
            SessionOpened(
                at_s=self.now_s,
                session=SessionId(name),
                parent=None if parent is None else SessionId(parent),
                forked_tokens=forked_tokens,
            )
        )

    def submit(
        self, name: str, prompt: int = 20, prefix: int = 0, output: int = 5
    ) -> None:
        self._apply(
            TurnSubmitted(
                at_s=self.now_s,
                session=SessionId(name),
                prompt_tokens=prompt,
                prefix_tokens=prefix,
                max_output_tokens=output,
            )
        )

    def tool(self, name: str, call: str = "c") -> None:
        self._apply(
            ToolStarted(
                at_s=self.now_s,
                session=SessionId(name),
                call=CallId(call),
                tool="Bash",
            )
        )

    def end_tool(self, name: str, call: str = "c") -> None:
        self._apply(
            ToolEnded(
                at_s=self.now_s,
                session=SessionId(name),
                call=CallId(call),
                tool="Bash",
                seconds=1.0,
                status="ok",
            )
        )

    def abort(self, name: str) -> None:
        session = SessionId(name)
        for slot, work in list(self.busy.items()):
            if work.session == session and isinstance(
                work, PrefillStarted | DecodeStarted
            ):
                del self.busy[slot]
        self._apply(TurnAborted(at_s=self.now_s, session=session, reason="test"))

    def close(self, name: str) -> None:
        self._apply(SessionClosed(at_s=self.now_s, session=SessionId(name)))

    # ---- what the machine does -------------------------------------------------------

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self._plan()

    def finish(self, slot: int, output: int = 5) -> None:
        """Let the work on *slot* end well."""
        work = self.busy.pop(slot)
        self._apply(self._done(work, output))

    def fail(self, slot: int) -> None:
        """Let the copy or restore on *slot* fail."""
        work = self.busy.pop(slot)
        kind = CopyFailed if isinstance(work, CopyStarted) else RestoreFailed
        assert isinstance(work, CopyStarted | RestoreStarted)
        self._apply(kind(at_s=self.now_s, session=work.session, reason="test"))

    def run(self, name: str, prompt: int, output: int = 5) -> None:
        """Submit a turn and let everything in progress end until it has ended."""
        session = self.scheduler.session(SessionId(name))
        self.submit(name, prompt, session.kv_tokens, output)
        while session.turn is not None:
            self.finish(min(self.busy), output)

    def drain(self) -> None:
        """Let everything end; time passes when nothing is in progress."""
        for _ in range(10_000):
            if self.busy:
                self.finish(min(self.busy), 1)
            elif self.scheduler.queued_turns:
                self.wait((self.settings.age_bound_s or 3600) + 1)
            else:
                return
        raise AssertionError("the scheduler never came to rest")

    def apply(self, event: Event) -> None:
        """Apply any event, then plan."""
        self._apply(event)

    # ---- carrying out ----------------------------------------------------------------

    def _done(self, work: Work, output: int) -> Event:
        session = self.scheduler.session(work.session)
        at_s = self.now_s
        if isinstance(work, CopyStarted):
            return Copied(
                at_s=at_s,
                session=work.session,
                kv_tokens=work.kv_tokens,
                nbytes=1,
                seconds=0.1,
                tier="host",
            )
        if isinstance(work, RestoreStarted):
            return Restored(
                at_s=at_s,
                session=work.session,
                kv_tokens=work.kv_tokens,
                nbytes=1,
                seconds=0.1,
                tier="host",
            )
        turn = session.turn
        assert turn is not None
        if isinstance(work, PrefillStarted):
            return PrefillDone(
                at_s=at_s,
                session=work.session,
                computed_tokens=turn.prompt_tokens - session.kv_tokens,
                reused_tokens=session.kv_tokens,
                expected_tokens=session.kv_tokens,
            )
        sampled = min(output, turn.max_output_tokens)
        return DecodeDone(
            at_s=at_s,
            session=work.session,
            output_tokens=sampled,
            kv_tokens=turn.prompt_tokens + sampled - 1,
        )

    def _apply(self, event: Event) -> None:
        self.scheduler.apply(event, self.now_s)
        self._plan()

    def _plan(self) -> None:
        plan = self.scheduler.plan(self.now_s)
        self.plans.append(plan)
        for released in plan.release:
            assert released.slot not in self.busy, "released under running work"
        for work in (*plan.copy, *plan.restore, *plan.start):
            assert work.slot not in self.busy, f"{work} on a busy slot"
            self.busy[work.slot] = work
        if self.on_plan is not None:
            self.on_plan(plan)
        self.scheduler.check_integrity()
        assert self.scheduler.plan(self.now_s).empty, "a plan was given twice"
