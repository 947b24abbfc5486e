"""Whatever agents do: every policy keeps its books, its word and its temper."""

import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvalet.scheduler import (
    POLICY_NAMES,
    CopyLost,
    Plan,
    PrefillStarted,
    Residency,
    SchedulerSettings,
    Session,
    SessionId,
    parse_policy,
)

from ..scheduler.carrier import Carrier
from .test_scheduler import History


def _live(spelled: str) -> Iterator[str]:
    """Yield the policy that POLICY_NAMES spells, without and with all of its flags."""
    name = spelled.replace("SECONDS", "2")
    for text in dict.fromkeys((re.sub(r"\[.*?\]", "", name), re.sub("[][]", "", name))):
        traits = parse_policy(text).traits
        if not (traits.clairvoyant or traits.unlimited):
            yield text


POLICIES = [text for spelled in POLICY_NAMES for text in _live(spelled)]
AGE_BOUND_S = 30.0


class Rough(History):
    """A history with tenants, deadlines, lost copies and lost engines as well."""

    def _for_session(self, name: str) -> list[Callable[[], None]]:
        steps = super()._for_session(name)
        if name not in self.opened or name in self.closed:
            return steps
        carrier = self.carrier
        lost = CopyLost(at_s=carrier.now_s, session=SessionId(name))
        session = self._session(name)
        if session.copied_tokens and session.residency is not Residency.RESTORING:
            steps.append(partial(carrier.apply, lost))
        if name == min(self.opened - self.closed):
            steps.append(partial(carrier.restart, name))
        return steps

    def _open(self, name: str) -> None:
        self.opened.add(name)
        self.carrier.open(
            name,
            tenant=self.data.draw(st.sampled_from(["", "x", "y"])),
            weight=self.data.draw(st.sampled_from([0.5, 1.0, 3.0])),
            priority=self._number(-1, 1),
        )

    def _submit(self, name: str, session: Session) -> None:
        prompt = self._number(1, 110)
        prefix = self._number(0, min(prompt, session.kv_tokens))
        output = self._number(1, 10)
        in_s = self.data.draw(st.none() | st.integers(-5, 60))
        deadline_s = None if in_s is None else self.carrier.now_s + in_s
        self.carrier.submit(name, prompt, prefix, output, deadline_s)


@pytest.mark.parametrize("policy", POLICIES)
@given(
    data=st.data(),
    slots=st.integers(1, 3),
    kv_tokens=st.integers(60, 250),
    exports_rows=st.booleans(),
    bytes_per_token=st.sampled_from([0, 1000]),
    limits=st.builds(
        SchedulerSettings,
        max_prefills=st.integers(1, 3),
        max_moves=st.integers(1, 2),
        target_itl_s=st.none() | st.just(0.1),
        age_bound_s=st.none() | st.just(AGE_BOUND_S),
    ),
)
@settings(max_examples=60, deadline=None)
def test_promises_hold_under_every_policy(
    policy: str,
    data: st.DataObject,
    slots: int,
    kv_tokens: int,
    exports_rows: bool,
    bytes_per_token: int,
    limits: SchedulerSettings,
) -> None:
    """The books balance, somebody always looks again, all ends, and ends the same."""
    carrier = Carrier(
        policy=parse_policy(policy),
        slots=slots,
        kv_tokens=kv_tokens,
        exports_rows=exports_rows,
        bytes_per_token=bytes_per_token,
        settings=limits,
    )
    carrier.on_plan = partial(_check, carrier)
    history = Rough(carrier, data)
    for _ in range(data.draw(st.integers(1, 60), label="steps")):
        history.step()
    settle(carrier)
    live = sorted(history.opened - history.closed)
    assert all(carrier.scheduler.session(SessionId(n)).turn is None for n in live)
    history.close_all()
    settle(carrier)

    assert (carrier.scheduler.sessions, carrier.scheduler.reserved_tokens) == (0, 0)
    assert carrier.again(parse_policy(policy)).plans == carrier.plans


def settle(carrier: Carrier) -> None:
    """Let work end, and time pass as plans ask for it, until no turn waits."""
    for _ in range(10_000):
        if carrier.busy:
            carrier.finish(min(carrier.busy), 1)
        elif carrier.scheduler.queued_turns:
            wake_at_s = carrier.plans[-1].wake_at_s
            assert wake_at_s is not None
            carrier.wait(wake_at_s - carrier.now_s)
        else:
            return
    raise AssertionError("the scheduler never came to rest")


def _check(carrier: Carrier, plan: Plan) -> None:
    """Only ready work starts; who waits while nothing goes on is looked at again."""
    for start in plan.start:
        session = carrier.scheduler.session(start.session)
        assert session.slot == start.slot
        ready = session.residency is Residency.RESIDENT
        if isinstance(start, PrefillStarted) and not ready:
            assert session.turn is not None
            recomputed = session.turn.recomputed
            assert session.residency is Residency.ABSENT or recomputed
    if carrier.scheduler.queued_turns and not carrier.busy:
        assert plan.wake_at_s is not None and plan.wake_at_s > carrier.now_s
