"""A policy whose answers do not ripen decides the same, however often it is asked."""

from dataclasses import replace

import pytest

from kvalet import run_in_virtual_time
from kvalet.runtime.replay import EngineOptions, Replay, RunOptions
from kvalet.runtime.traces import GeneratorSettings, generate
from kvalet.scheduler import Event, parse_policy

TRACE = generate(GeneratorSettings(seed=6, sessions=50, arrivals_per_s=1.0))
ENGINE = EngineOptions(
    backend="simulated", slots=32, kv_tokens=400_000, accelerator="h100-10gbe"
)


def decisions(name: str, *, ripens: bool) -> list[str]:
    """Return all that happens; what happens at the same instant has no order."""
    policy = parse_policy(name)
    traits = replace(policy.traits, ripens=ripens)
    vars(policy)["traits"] = traits  # of this one alone
    heard: list[Event] = []
    options = RunOptions(
        engine=ENGINE, policies=[policy], observer=lambda policy: heard.append
    )
    run_in_virtual_time(Replay(TRACE, options).run())
    return sorted(map(repr, heard))


@pytest.mark.parametrize("name", ["keep", "park", "infercept"])
def test_looking_again_changes_nothing(name: str) -> None:
    """With more work than memory, timers that look again find nobody to let in."""
    assert not parse_policy(name).traits.ripens
    assert decisions(name, ripens=False) == decisions(name, ripens=True)
