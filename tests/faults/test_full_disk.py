"""A disk that is full: a state that does not fit is computed again, others are kept."""

import shutil
import subprocess
from pathlib import Path

import pytest

from .children import Child, as_json
from .stage import LONG_TOKENS, Tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_full_disk_costs_prefills_alone(
    expected: list[Tokens], tiny_gguf: Path, tmp_path: Path
) -> None:
    """Nothing is wrong or lost, and what fits beside it is parked and restored."""
    folder = tmp_path / "store"
    folder.mkdir()
    # Too small for the long session, and enough for the one that takes its slot.
    mount = f'mount -t tmpfs -o size={LONG_TOKENS // 8}k none "{folder}" && exec "$@"'
    in_namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or fails([*in_namespace, "true"]):
        pytest.skip("no file system can be mounted here")
    child = await Child.start(
        "disk", str(folder), str(tiny_gguf), "a", "b", within=in_namespace
    )
    result = await child.result()
    assert result["said"] == as_json([expected] * 2)
    assert any("does not fit" in reason for reason in result["reasons"])
    copied, _ = result["moved"]
    assert copied > 0
    assert result["left_bytes"] == 0


def fails(command: list[str]) -> bool:
    """Return whether a command can't be run here."""
    return subprocess.run(command, capture_output=True, check=False).returncode != 0
