"""Prefills that are cut so that those who decode keep their pace."""

from dataclasses import replace

import anyio
import pytest

from kvalet.backends import SimulatedBackend
from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.runtime import Runtime
from kvalet.scheduler import (
    Event,
    InvalidSetting,
    PrefillAdvanced,
    PrefillDone,
    SchedulerSettings,
)

from .backends import ROUND

# A token of prompt 0.01 s, of answer 0.1 s, and no answer goes on during a prefill.
SHARED = replace(ROUND, shared_compute=True)


def talk(target_itl_s: float | None) -> tuple[list[Event], float, int]:
    """Let one session decode 40 tokens while another brings 400 tokens of prompt.

    Return the events, how long the answer took, and the tokens that the long prompt's
    session reused in its next turn.
    """

    async def main() -> tuple[list[Event], float, int]:
        events: list[Event] = []
        backend = SimulatedBackend(
            accelerator=SHARED, slots=2, kv_tokens=2000, context_tokens=1000
        )
        async with Runtime(
            backend,
            policy="keep",
            settings=SchedulerSettings(target_itl_s=target_itl_s),
            observers=[events.append],
        ) as runtime:
            talking, long = runtime.session("talking"), runtime.session("long")
            await talking.turn([1] * 10, max_tokens=10)  # a step's time is known now
            answered_s = 0.0

            async def answer() -> None:
                nonlocal answered_s
                began_s = anyio.current_time()
                await talking.turn([2] * 10, max_tokens=40)
                answered_s = anyio.current_time() - began_s

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answer)
                await anyio.sleep(1.0)
                await long.turn([3] * 400, max_tokens=1)
            reply = await long.turn([4], max_tokens=1)
            runtime.scheduler.check_integrity()
            return events, answered_s, reply.usage.reused_tokens

    return run_in_virtual_time(main())


def parts(events: list[Event]) -> list[int]:
    """Return the tokens computed in each part of the long prompt."""
    return [
        event.computed_tokens
        for event in events
        if isinstance(event, PrefillAdvanced | PrefillDone) and event.session == "long"
    ][:-1]


def test_a_long_prompt_is_computed_in_parts_that_keep_the_pace() -> None:
    """With 0.6 s from token to token, no part takes more than 0.5 s, or 50 tokens."""
    events, _, reused = talk(0.6)
    computed = parts(events)
    assert sum(computed) == 400
    assert max(computed) <= 50
    assert reused == 400  # what was computed in parts is one state


def test_without_a_target_it_is_computed_at_once() -> None:
    """One part of 400 tokens, during which nobody else gets a token."""
    events, answered_s, _ = talk(None)
    assert parts(events) == [400]
    assert answered_s == pytest.approx(0.11 + 3.9 + 4.0)


def test_nothing_is_cut_while_nobody_decodes() -> None:
    """The first prompts of both sessions are computed whole."""
    events, _, _ = talk(0.6)
    first = next(event for event in events if isinstance(event, PrefillDone))
    assert first.computed_tokens == 10


@pytest.mark.parametrize("target", [0.0, -1.0, float("nan")])
def test_a_target_must_be_positive(target: float) -> None:
    """Anything else is refused by name."""
    with pytest.raises(InvalidSetting, match="target_itl_s must be positive"):
        SchedulerSettings(target_itl_s=target)
