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


def run(name: str) -> str:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
