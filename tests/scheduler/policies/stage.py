"""Sessions on a carrier, brought to where a policy has something to decide."""

from kvalet.scheduler import (
    CallId,
    Capacity,
    Residency,
    Scheduler,
    SchedulerSettings,
    SessionId,
    ToolEnded,
    ToolStarted,
    parse_policy,
)

from ..carrier import Carrier


def carrier_of(
    policy: str, *, slots: int = 2, kv_tokens: int = 200, age_bound_s: float = 1e6
) -> Carrier:
    """Return a carrier whose turns, unless told otherwise, never become urgent.

    Nothing it does takes time, so nothing is measured but copies: computing a token is
    taken for a millisecond, moving it for half of one.
    """
    carrier = Carrier(
        policy=parse_policy(policy),
        settings=SchedulerSettings(age_bound_s=age_bound_s),
    )
    carrier.scheduler = Scheduler(
        capacity=Capacity(
            slots=slots, kv_tokens=kv_tokens, context_tokens=100, bytes_per_token=1
        ),
        policy=carrier.policy,
        settings=carrier.settings,
    )
    return carrier


def resident(carrier: Carrier, names: str) -> str:
    """Return those of *names* whose state is on the accelerator."""
    return "".join(name for name in names if _held(carrier, name))


def _held(carrier: Carrier, name: str) -> bool:
    residency = carrier.scheduler.session(SessionId(name)).residency
    return residency in (Residency.RESIDENT, Residency.PARKING)


def into_a_tool(
    carrier: Carrier,
    name: str,
    prompt: int = 20,
    *,
    tool: str = "Bash",
    expected_s: float | None = None,
) -> None:
    """Open a session, run its first turn and start a tool."""
    carrier.open(name)
    carrier.run(name, prompt)
    carrier.apply(
        ToolStarted(
            at_s=carrier.now_s,
            session=SessionId(name),
            call=CallId("c"),
            tool=tool,
            expected_s=expected_s,
        )
    )


def teach(carrier: Carrier, calls: int, seconds: float, *, tool: str = "Bash") -> None:
    """Let a session call *tool* so often, for so long, and close it."""
    name = SessionId(f"teacher of {tool}")
    carrier.open(name)
    carrier.run(name, 1)
    for _ in range(calls):
        carrier.apply(
            ToolStarted(at_s=carrier.now_s, session=name, call=CallId("t"), tool=tool)
        )
        carrier.wait(seconds)
        carrier.apply(
            ToolEnded(
                at_s=carrier.now_s,
                session=name,
                call=CallId("t"),
                tool=tool,
                seconds=seconds,
                status="ok",
            )
        )
        carrier.run(name, 1)
    carrier.close(name)
