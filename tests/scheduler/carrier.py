"""A carrier of plans for tests: it answers every entry of a plan, when told to.

It keeps what is in progress per slot, and so notices at once if a plan puts two units
of work on one slot, or starts something that was not ready.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvalet.scheduler import (
    CallId,
    Capacity,
    Copied,
    CopyFailed,
    CopyStarted,
    CostModel,
    DecodeDone,
    DecodeStarted,
    EngineRestarted,
    Event,
    Plan,
    Policy,
    PrefillAdvanced,
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

ANSWERS = (
    Copied,
    CopyFailed,
    DecodeDone,
    PrefillAdvanced,
    PrefillDone,
    Restored,
    RestoreFailed,
    TurnAborted,
)
Work = PrefillStarted | DecodeStarted | CopyStarted | RestoreStarted


@dataclass
class Carrier:
    """Drives one scheduler; ``busy`` maps a slot to the work in progress there.

    ``heard`` has what the scheduler was told and when; None is the passing of time.
    """

    policy: Policy
    slots: int = 2
    kv_tokens: int = 200
    context_tokens: int = 100
    bytes_per_token: int = 0
    exports_kv: bool = True
    exports_rows: bool = False
    settings: SchedulerSettings = field(default_factory=SchedulerSettings)
    costs: Callable[[], CostModel] = CostModel
    now_s: float = 0.0
    busy: dict[int, Work] = field(init=False, default_factory=dict[int, Work])
    plans: list[Plan] = field(init=False, default_factory=list[Plan])
    heard: list[tuple[float, Event | None]] = field(
        init=False, default_factory=list[tuple[float, Event | None]]
    )
    on_plan: Callable[[Plan], None] | None = None

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            capacity=Capacity(
                slots=self.slots,
                kv_tokens=self.kv_tokens,
                context_tokens=self.context_tokens,
                bytes_per_token=self.bytes_per_token,
                exports_kv=self.exports_kv,
                exports_rows=self.exports_rows,
                exports_slices=self.exports_rows,
            ),
            policy=self.policy,
            settings=self.settings,
            cost=self.costs(),
        )

    def again(self, policy: Policy) -> "Carrier":
        """Return another one, under a fresh *policy*, that has heard the same."""
        other = replace(self, policy=policy, now_s=0.0, on_plan=None)
        for now_s, event in self.heard:
            other.now_s = now_s
            if event is None:
                other.wait(0)
                continue
            for slot, work in list(other.busy.items()):
                if work.session == event.session and isinstance(event, ANSWERS):
                    del other.busy[slot]
            other.apply(event)
        return other

    # ---- what agents do --------------------------------------------------------------

    def open(
        self,
        name: str,
        parent: str | None = None,
        forked_tokens: int = 0,
        *,
        tenant: str = "",
        weight: float = 1.0,
        priority: int = 0,
    ) -> None:
        self._apply(
            SessionOpened(
                at_s=self.now_s,
                session=SessionId(name),
                parent=None if parent is None else SessionId(parent),
                forked_tokens=forked_tokens,
                tenant=tenant,
                weight=weight,
                priority=priority,
            )
        )

    def submit(
        self,
        name: str,
        prompt: int = 20,
        prefix: int = 0,
        output: int = 5,
        deadline_s: float | None = None,
    ) -> None:
        self._apply(
            TurnSubmitted(
                at_s=self.now_s,
                session=SessionId(name),
                prompt_tokens=prompt,
                prefix_tokens=prefix,
                max_output_tokens=output,
                deadline_s=deadline_s,
            )
        )

    def tool(
        self,
        name: str,
        call: str = "c",
        *,
        tool_class: str = "other",
        expected_s: float | None = None,
    ) -> None:
        self._apply(
            ToolStarted(
                at_s=self.now_s,
                session=SessionId(name),
                call=CallId(call),
                tool="Bash",
                tool_class=tool_class,
                expected_s=expected_s,
            )
        )

    def end_tool(
        self,
        name: str,
        call: str = "c",
        *,
        tool_class: str = "other",
        seconds: float = 1.0,
    ) -> None:
        self._apply(
            ToolEnded(
                at_s=self.now_s,
                session=SessionId(name),
                call=CallId(call),
                tool="Bash",
                tool_class=tool_class,
                seconds=seconds,
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
        self.heard.append((self.now_s, None))
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

    def restart(self, notices: str) -> None:
        """Lose the engine and all that is on it; the session *notices* it."""
        lost = list(self.busy.items())
        self._apply(EngineRestarted(at_s=self.now_s, session=SessionId(notices)))
        for slot, work in lost:
            if self.busy.get(slot) is work:
                if isinstance(work, CopyStarted | RestoreStarted):
                    self.fail(slot)
                else:
                    self.abort(work.session)

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
        if isinstance(work, CopyStarted | RestoreStarted):
            return self._moved(work)
        turn = session.turn
        assert turn is not None
        if isinstance(work, PrefillStarted):
            there = session.reusable_tokens
            until = work.until_tokens
            if until is not None and until < turn.prompt_tokens:
                return PrefillAdvanced(
                    at_s=at_s,
                    session=work.session,
                    kv_tokens=until,
                    computed_tokens=until - there,
                    reused_tokens=there,
                    expected_tokens=there,
                )
            return PrefillDone(
                at_s=at_s,
                session=work.session,
                computed_tokens=turn.prompt_tokens - there,
                reused_tokens=there,
                expected_tokens=there,
            )
        sampled = min(output, turn.max_output_tokens)
        return DecodeDone(
            at_s=at_s,
            session=work.session,
            output_tokens=sampled,
            kv_tokens=turn.prompt_tokens + sampled - 1,
        )

    def _moved(self, work: CopyStarted | RestoreStarted) -> Copied | Restored:
        first_token = work.first_token if isinstance(work, CopyStarted) else 0
        moved_tokens = work.kv_tokens - first_token
        kind = Copied if isinstance(work, CopyStarted) else Restored
        return kind(
            at_s=self.now_s,
            session=work.session,
            kv_tokens=work.kv_tokens,
            nbytes=max(1, moved_tokens * self.bytes_per_token),
            seconds=self.move_s(moved_tokens),
            tier="host",
        )

    def move_s(self, tokens: int) -> float:
        """Return what it takes to move so many tokens; the same for all of them."""
        return 0.1

    def _apply(self, event: Event) -> None:
        self.heard.append((self.now_s, event))
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
