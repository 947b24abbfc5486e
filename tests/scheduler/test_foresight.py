"""Restore-ahead: parked state comes back before its turn, when that is a good bet."""

from kvalet.scheduler import (
    CallId,
    Phase,
    Plan,
    Residency,
    RestoreStarted,
    SessionId,
    ToolStarted,
    parse_policy,
)

from .carrier import Carrier


def call(carrier: Carrier, name: str, expected_s: float) -> None:
    """Start a tool of which it is known how long it takes."""
    carrier.apply(
        ToolStarted(
            at_s=carrier.now_s,
            session=SessionId(name),
            call=CallId("c"),
            tool="Bash",
            expected_s=expected_s,
        )
    )


def restores(plans: list[Plan]) -> list[RestoreStarted]:
    return [restore for plan in plans for restore in plan.restore]


def parked(expected_s: float) -> Carrier:
    """Return a carrier whose "a" is parked in a tool, and memory is free again."""
    carrier = Carrier(policy=parse_policy("auto"), slots=2, kv_tokens=100)
    for name in ("a", "b"):
        carrier.open(name)
    carrier.run("a", 50)
    call(carrier, "a", expected_s)
    carrier.submit("b", prompt=70)  # does not fit beside "a"
    while carrier.busy:
        carrier.finish(min(carrier.busy))
    session = carrier.scheduler.session(SessionId("a"))
    assert (session.phase, session.residency) == (Phase.TOOL, Residency.PARKED)
    carrier.close("b")
    return carrier


def looks(carrier: Carrier, until_s: float) -> None:
    """Let time pass, as the plans ask for it."""
    while carrier.now_s < until_s:
        wake_at_s = carrier.plans[-1].wake_at_s
        if wake_at_s is None or wake_at_s > until_s:
            return
        carrier.wait(wake_at_s - carrier.now_s)
        if carrier.busy:
            return


def test_state_is_back_before_its_tool_ends() -> None:
    """It is restored when the tool is about to end, and the turn needs no restore."""
    carrier = parked(100.0)
    looks(carrier, 100.0)
    [restore] = restores(carrier.plans)
    assert restore.ahead
    carrier.finish(restore.slot)
    carrier.end_tool("a")
    carrier.submit("a", prompt=60, prefix=54)
    assert len(restores(carrier.plans)) == 1
    assert len(carrier.plans[-1].start) == 1


def test_nobody_is_restored_long_before() -> None:
    """While the tool has long to go, nothing moves."""
    carrier = parked(1e6)
    looks(carrier, 1e3)
    assert not restores(carrier.plans)


def test_a_turn_joins_the_restore_that_runs() -> None:
    """A tool that ends during the restore does not start a second one."""
    carrier = parked(100.0)
    looks(carrier, 100.0)
    carrier.end_tool("a")
    carrier.submit("a", prompt=60, prefix=54)
    [restore] = restores(carrier.plans)
    carrier.finish(restore.slot)
    assert len(carrier.plans[-1].start) == 1
    carrier.drain()
    assert len(restores(carrier.plans)) == 1


def test_what_came_back_too_early_leaves_at_once() -> None:
    """Whoever needs the memory takes it: the copy is still there, so none is made."""
    carrier = parked(100.0)
    looks(carrier, 100.0)
    carrier.finish(min(carrier.busy))
    copies = sum(len(plan.copy) for plan in carrier.plans)
    carrier.open("c")
    carrier.submit("c", prompt=90)
    carrier.wait(4000)
    carrier.drain()
    assert carrier.scheduler.session(SessionId("c")).turn is None
    assert copies == sum(len(plan.copy) for plan in carrier.plans)
