"""The examples run as they are."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.model
def test_embedded_example(default_model: Path) -> None:
    """It parks during the tool, restores after it, and reuses nearly everything."""
    printed = run("embedded.py")
    assert "parked" in printed and "restored" in printed
    words = printed.splitlines()[-1].split()
    reused, prompt = int(words[1]), int(words[3])
    assert reused > prompt * 0.9


def test_replay_example() -> None:
    """It prints a column per policy and who beats whom."""
    printed = run("replay.py")
    for word in ("drop", "keep", "park", "hold:1", "park beats drop"):
        assert word in printed


def test_scheduler_cost() -> None:
    """It prints microseconds per event and bytes per session."""
    printed = run("scheduler_cost.py", "--sessions", "20,50", "--rounds", "1")
    assert "µs per event" in printed and "bytes per session" in printed


def test_scheduler_cost_refuses_nonsense() -> None:
    """A wrong policy or number is one sentence and status 2."""
    for arguments in (("--policy", "lru"), ("--sessions", "0"), ("--sessions", "x")):
        ended = start("scheduler_cost.py", *arguments)
        assert ended.returncode == 2
        assert "Traceback" not in ended.stderr


def test_latency_calibration() -> None:
    """Both halves of the bundled trace are scored against the simpler models."""
    printed = run("latency_calibration.py")
    assert "lognormal" in printed and "mean" in printed


def run(name: str, *arguments: str) -> str:
    ended = start(name, *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def start(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
