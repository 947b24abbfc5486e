"""Random histories: whatever agents and machines do, the promises hold."""

from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from kvalet.scheduler import (
    CopyStarted,
    Plan,
    Policy,
    PrefillStarted,
    Residency,
    RestoreStarted,
    SchedulerSettings,
    Session,
    SessionId,
    parse_policy,
)

from ..scheduler.carrier import Carrier

NAMES = ("a", "b", "c", "d", "e")
policies = st.sampled_from(
    [
        "auto",
        "continuum",
        "continuum:released",
        "continuum:tier",
        "drop",
        "hold:2",
        "infercept",
        "keep",
        "oracle",
        "park",
        "progress-ttl",
        "progress-ttl:tier",
        "thunder",
        "thunder:tier",
        "unlimited",
    ]
).map(parse_policy)


class History:
    """One random history: every step is something that could happen now."""

    def __init__(self, carrier: Carrier, data: st.DataObject) -> None:
        self.carrier = carrier
        self.data = data
        self.opened: set[str] = set()
        self.closed: set[str] = set()

    def step(self) -> None:
        choices = list(self._possible())
        self.data.draw(st.sampled_from(choices), label="step")()

    def close_all(self) -> None:
        for name in sorted(self.opened - self.closed):
            self._end_calls(name)
            self._close(name)

    def _session(self, name: str) -> Session:
        return self.carrier.scheduler.session(SessionId(name))

    def _possible(self) -> list[Callable[[], None]]:
        carrier = self.carrier
        steps: list[Callable[[], None]] = [lambda: carrier.wait(self._number(0, 40))]
        for name in NAMES:
            steps.extend(self._for_session(name))
        for slot, work in carrier.busy.items():
            steps.append(partial(self._finish, slot))
            if isinstance(work, CopyStarted | RestoreStarted):
                steps.append(partial(carrier.fail, slot))
        return steps

    def _for_session(self, name: str) -> list[Callable[[], None]]:
        if name in self.closed:
            return []
        if name not in self.opened:
            return [lambda: self._open(name), lambda: self._fork(name)]
        session = self._session(name)
        if session.turn is not None:
            return [lambda: self.carrier.abort(name)]
        calls = list(session.open_calls)
        steps: list[Callable[[], None]] = [lambda: self._submit(name, session)]
        steps.append(lambda: self._close(name))
        steps.append(lambda: self.carrier.tool(name, f"c{len(calls)}{session.waits}"))
        if calls:
            steps.append(lambda: self.carrier.end_tool(name, calls[0]))
        return steps

    def _finish(self, slot: int) -> None:
        self.carrier.finish(slot, self._number(1, 10))

    def _open(self, name: str) -> None:
        self.opened.add(name)
        self.carrier.open(name)

    def _fork(self, name: str) -> None:
        parents = sorted(self.opened - self.closed)
        if not parents:
            self._open(name)
            return
        parent = self.data.draw(st.sampled_from(parents))
        held_tokens = self._session(parent).held_tokens
        self.opened.add(name)
        self.carrier.open(name, parent, self._number(0, held_tokens + 1))

    def _close(self, name: str) -> None:
        self.closed.add(name)
        self.carrier.close(name)

    def _submit(self, name: str, session: Session) -> None:
        prompt = self._number(1, 110)
        prefix = self._number(0, min(prompt, session.kv_tokens))
        self.carrier.submit(name, prompt, prefix, self._number(1, 10))

    def _end_calls(self, name: str) -> None:
        for call in list(self._session(name).open_calls):
            self.carrier.end_tool(name, call)

    def _number(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))


@given(
    data=st.data(),
    policy=policies,
    slots=st.integers(1, 3),
    kv_tokens=st.integers(60, 250),
    max_prefills=st.integers(1, 3),
)
@settings(max_examples=150, deadline=None)
def test_promises_hold_over_random_histories(
    data: st.DataObject,
    policy: Policy,
    slots: int,
    kv_tokens: int,
    max_prefills: int,
) -> None:
    """Only ready work starts, the books balance, every turn ends, nothing is left."""
    carrier = Carrier(
        policy=policy,
        slots=slots,
        kv_tokens=kv_tokens,
        context_tokens=100,
        settings=SchedulerSettings(max_prefills=max_prefills, age_bound_s=30),
    )
    carrier.on_plan = lambda plan: _check_starts(carrier, plan)
    history = History(carrier, data)
    for _ in range(data.draw(st.integers(1, 60), label="steps")):
        history.step()

    carrier.drain()

    assert all(
        carrier.scheduler.session(SessionId(n)).turn is None
        for n in history.opened - history.closed
    )
    history.close_all()
    carrier.drain()
    assert (carrier.scheduler.sessions, carrier.scheduler.reserved_tokens) == (0, 0)


def _check_starts(carrier: Carrier, plan: Plan) -> None:
    """What was started has its state on the accelerator and is not being moved."""
    for start in plan.start:
        session = carrier.scheduler.session(start.session)
        assert session.slot == start.slot
        allowed = {Residency.RESIDENT}
        if isinstance(start, PrefillStarted):
            allowed.add(Residency.ABSENT)
        assert session.residency in allowed


@given(data=st.data(), policy=policies)
@settings(max_examples=40, deadline=None)
def test_same_events_give_same_plans(data: st.DataObject, policy: Policy) -> None:
    """Two schedulers that hear the same events give the same plans."""
    first, second = Carrier(policy=policy), Carrier(policy=parse_policy(policy.name))
    history = History(Both(first, second), data)
    for _ in range(40):
        history.step()

    assert first.plans == second.plans


class Both(Carrier):
    """Two carriers in lockstep; the first one's state decides what is possible."""

    def __init__(self, first: Carrier, second: Carrier) -> None:
        super().__init__(policy=first.policy)
        self.first, self.second = first, second
        self.scheduler, self.busy = first.scheduler, first.busy

    def __getattribute__(self, name: str) -> object:
        if name in (
            "open",
            "submit",
            "tool",
            "end_tool",
            "abort",
            "close",
            "wait",
            "finish",
            "fail",
        ):
            first, second = (
                object.__getattribute__(self, n) for n in ("first", "second")
            )

            def both(*args: object) -> None:
                getattr(first, name)(*args)
                getattr(second, name)(*args)

            return both
        return object.__getattribute__(self, name)
