"""``python -m kvalet calibrate`` as a user meets it: status, sentences, files."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvalet.runtime.costs import costs_path, load_costs

# Whatever a run prints, it must end well before this.
PATIENCE_S = 60.0


def command(*arguments: object) -> list[str]:
    """Return the command line."""
    return [sys.executable, "-m", "kvalet", "calibrate", *map(str, arguments)]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which all files go to a folder of the test's."""
    return {
        **os.environ,
        "TMPDIR": str(folder),
        "KVALET_CACHE_DIR": str(folder / "cache"),
        "COLUMNS": "100",
    }


def kvalet(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run the command in *folder* to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def calibrated(folder: Path, *arguments: object) -> Any:
    """Return what ``--json`` prints for a simulated accelerator."""
    result = kvalet(folder, "--backend", "simulated", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


# ---- a good run ----------------------------------------------------------------------


def test_a_good_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 0, costs and break-even as tables and sentences, the file in the cache."""
    result = kvalet(tmp_path, "--backend", "simulated")
    assert (result.returncode, "Traceback" in result.stderr) == (0, False)
    for part in ("prefill", "decode step", "save (host)", "restore (host)"):
        assert part in result.stdout
    assert "Parking pays from the first token on" in result.stdout
    assert "waits longer than" in result.stdout
    assert "keeping costs nothing" in result.stdout
    monkeypatch.setenv("KVALET_CACHE_DIR", str(tmp_path / "cache"))
    path = costs_path("simulated smollm2-cpu")
    assert str(path) in result.stderr
    assert load_costs(path, backend="simulated smollm2-cpu").save_s(1000) is not None


def test_where_parking_never_pays(tmp_path: Path) -> None:
    """On a slow link it is said plainly, and why."""
    result = kvalet(tmp_path, "--backend", "simulated", "--accelerator", "h100-10gbe")
    assert result.returncode == 0
    assert "Parking pays: never. Moving a token takes longer" in result.stdout
    assert "pays for waits" not in result.stdout


def test_json(tmp_path: Path) -> None:
    """One object with the costs, their confidence, and parking at several contexts."""
    found = calibrated(tmp_path, "--accelerator", "h100-pcie", "-o", "costs.json")
    assert found["schema"] == "kvalet.calibration/1"
    assert found["backend"] == "simulated h100-pcie"
    assert set(found["costs"]) == {"prefill", "decode_step", "save", "restore"}
    rate = 1 / found["costs"]["save"]["seconds"]["per_byte"]
    assert rate == pytest.approx(50e9, rel=0.03)
    assert found["costs"]["save"]["confidence"] > 0.9
    assert 50 < found["pays_from_tokens"] < 100
    contexts = [row["context_tokens"] for row in found["break_even"]]
    assert contexts == [1024, 4096, 16_384, 65_536, 131_072]
    assert all(row["pays"] for row in found["break_even"])
    assert (tmp_path / "costs.json").exists()
    assert not (tmp_path / "cache").exists()


def test_the_same_command_finds_the_same(tmp_path: Path) -> None:
    """Virtual time does not depend on the machine: byte for byte."""
    first = calibrated(tmp_path, "-o", "one.json", "--context", 8192)
    second = calibrated(tmp_path, "-o", "two.json", "--context", 8192)
    one, two = (tmp_path / name for name in ("one.json", "two.json"))
    assert first == second
    assert one.read_bytes() == two.read_bytes()


def test_a_real_engine(tmp_path: Path, tiny_gguf: Path) -> None:
    """The embedded engine, in real time: status 0 and a file of that model."""
    result = kvalet(
        tmp_path, "--model", tiny_gguf, "--context", 512, "--json", "-o", "costs.json"
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    kept = json.loads((tmp_path / "costs.json").read_text())
    assert found["backend"] == kept["backend"]
    assert found["backend"].startswith("llama ")


# ---- bad input -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--backend", "vllm"), "unknown backend 'vllm'; valid are llama, simulated"),
        (
            ("--backend", "simulated", "--accelerator", "tpu"),
            "unknown accelerator 'tpu'; valid are smollm2-cpu",
        ),
        (("--threads", "0"), "--threads must be at least 1, not 0"),
        (("--context", "0"), "--context must be at least 1, not 0"),
        (("--backend", "simulated", "--context", "100"), "512 tokens, not 100"),
        (("--backend", "simulated", "--model", "x.gguf"), "--model goes with"),
        (("--accelerator", "h100-pcie"), "--accelerator goes with --backend simulated"),
        (("--model", "absent.gguf"), "absent.gguf"),
    ],
)
def test_wrong_settings(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """Status 2 and one sentence that names the setting."""
    result = kvalet(tmp_path, *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("content", ["not a cost file", "{}"])
def test_an_output_that_is_something_else(tmp_path: Path, content: str) -> None:
    """A file that the user named and that holds no costs is left as it is."""
    path = tmp_path / "notes.txt"
    path.write_text(content)
    result = kvalet(tmp_path, "--backend", "simulated", "--output", path)
    assert result.returncode == 2
    assert "is no cost file that can be used" in result.stderr
    assert path.read_text() == content


def test_an_output_of_another_backend(tmp_path: Path) -> None:
    """Costs of one backend never replace those of another; the sentence names both."""
    calibrated(tmp_path, "-o", "costs.json")
    result = kvalet(
        tmp_path,
        *("--backend", "simulated", "--accelerator", "h100-pcie", "-o", "costs.json"),
    )
    assert result.returncode == 2
    assert "'simulated smollm2-cpu', not of 'simulated h100-pcie'" in result.stderr


def test_a_broken_file_in_the_cache_is_replaced(tmp_path: Path) -> None:
    """It is ours, and the command that it asks for is this one."""
    calibrated(tmp_path)
    [path] = (tmp_path / "cache" / "costs").iterdir()
    path.write_text("broken")
    calibrated(tmp_path)
    assert json.loads(path.read_text())["schema"] == "kvalet.costs/1"


# ---- an end before the end -----------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run(
    tmp_path: Path, tiny_gguf: Path, number: signal.Signals
) -> None:
    """Status 130, no cost file, no process and no temporary file left."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    shared = Path("/dev/shm")
    before = set(shared.glob("kvalet-*"))
    with subprocess.Popen(
        command("--model", tiny_gguf, "--context", 8192, "-o", tmp_path / "costs.json"),
        env=environment(temporary),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            first = process.stderr.readline()  # the engine works
            children = _children(process.pid)
            process.send_signal(number)
            output, rest = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert "%, " in first
    assert children
    assert (process.returncode, output) == (130, "")
    assert "Traceback" not in rest
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    assert list(temporary.iterdir()) == []
    assert set(shared.glob("kvalet-*")) <= before


def _children(process_id: int) -> list[int]:
    tasks = Path(f"/proc/{process_id}/task").iterdir()
    return [
        int(child)
        for task in tasks
        for child in (task / "children").read_text().split()
    ]
