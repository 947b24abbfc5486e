"""The pressure sweep on a few generated sessions, and on a study of three."""

import json
import math
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "pressure_sweep.py"
TINY = (
    *("--workload", "generated", "--sessions", "24", "--live", "6", "--seeds", "2"),
    *("--accelerators", "smollm2-cpu", "h100-pcie", "--pressures", "0.5", "2"),
    *("--policies", "auto,keep", "--change-link"),
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a tiny sweep prints, and the file that it writes."""
    file = tmp_path_factory.mktemp("sweep") / "sweep.json"
    ended = run(*TINY, "--jobs", "2", "--json", str(file))
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, file


def test_every_load_has_a_table_and_every_point_a_verdict(
    swept: tuple[str, Path],
) -> None:
    """Both shares, every accelerator, and the link that changes."""
    printed, _ = swept
    for share in ("tuned", "held-out"):
        for accelerator in ("smollm2-cpu", "h100-pcie", "h100-pcie>h100-10gbe"):
            assert f"generated, {share}, {accelerator}:" in printed
            assert f"generated/{share} {accelerator} 2 " in printed
        assert f"Verdict, {share} sessions" in printed


def test_a_sweep_repeats_whatever_the_number_of_processes(
    swept: tuple[str, Path], tmp_path: Path
) -> None:
    """The same seeds give the same bytes."""
    again = tmp_path / "again.json"
    assert run(*TINY, "--jobs", "1", "--json", str(again)).returncode == 0
    assert again.read_bytes() == swept[1].read_bytes()


def test_every_policy_does_the_same_work(swept: tuple[str, Path]) -> None:
    """Each order of a load has the same sessions and turns at every point."""
    work: dict[tuple[str, str, str], set[tuple[int, int]]] = {}
    for point, _, order, outcome in runs(swept[1]):
        load = (point["share"], point["accelerator"], order)
        done = (len(outcome["job_s"]), outcome["report"]["turns"])
        work.setdefault(load, set()).add(done)
        assert outcome["report"]["lost_turns"] == 0
    assert all(len(done) == 1 for done in work.values())


def test_progress_is_a_share_of_full_speed(swept: tuple[str, Path]) -> None:
    """Nobody lives shorter than alone on the accelerator, and everybody gets on."""
    for _, _, _, outcome in runs(swept[1]):
        assert all(0 < share <= 1 + 1e-6 for share in outcome["progress"])
        assert outcome["delay_s"] >= 0


def test_a_claim_compares_the_same_orders(swept: tuple[str, Path]) -> None:
    """Its ratio is the geometric mean of the ratios of paired replays."""
    claims = 0
    for point in json.loads(swept[1].read_bytes())["points"]:
        for claim in point["claims"]:
            if claim["name"] != "job":
                continue
            ours, theirs = point["runs"]["auto"], point["runs"][claim["rival"]]
            logs = [
                math.log(mean_job_s(ours[order]) / mean_job_s(theirs[order]))
                for order in ours
            ]
            assert math.isclose(claim["ratio"], math.exp(statistics.fmean(logs)))
            assert claim["low"] <= claim["ratio"] <= claim["high"]
            claims += 1
    assert claims == 10


def test_less_memory_never_helps_an_engine_left_alone(
    swept: tuple[str, Path],
) -> None:
    """``keep`` re-prefills at pressure 2 and not at 0.5."""
    for point, policy, _, outcome in runs(swept[1]):
        if policy == "keep":
            assert (outcome["reprefilled_tokens"] > 0) == (point["pressure"] > 1)
            assert outcome["moved_tokens"] == 0


def test_the_study_is_printed_beside_what_it_found(tmp_path: Path) -> None:
    """Each of its two settings names the figure to be beaten."""
    steps = [[9_000 + 500 * n, 8_500 + 500 * n, 40, 3.0, "Bash"] for n in range(4)]
    file = tmp_path / "steps.jsonl"
    file.write_text(f"{json.dumps(steps)}\n" * 6)
    ended = run("--study", str(file), "--policies", "auto,keep", "--seeds", "2")
    assert ended.returncode == 0, ended.stderr
    for word in ("to be beaten: 299 s", "to be beaten: 344 s", "best line: met"):
        assert word in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--policies", "auto,hope"), "hope"),
        (("--accelerators", "abacus"), "abacus"),
        (("--workload", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--study", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--seeds", "1"), "at least 2"),
    ],
)
def test_a_wrong_wish_is_said_in_one_sentence(
    arguments: tuple[str, str], word: str
) -> None:
    """Exit status 2, the offending value, no traceback."""
    ended = run("--workload", "generated", "--sessions", "9", *arguments)
    assert ended.returncode == 2
    assert word in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize("wish", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_prints_what_is_there(wish: signal.Signals) -> None:
    """Ctrl-C and a polite kill: the verdict comes all the same, the status is 130."""
    command = [sys.executable, str(SCRIPT), "--workload", "generated", "--jobs", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as sweep:
        assert sweep.stderr is not None
        assert "replays at" in sweep.stderr.readline()
        sweep.send_signal(wish)
        printed, told = sweep.communicate(timeout=60)
    assert sweep.returncode == 130, told
    assert "Traceback" not in told
    assert "Verdict, held-out sessions" in printed


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def runs(file: Path) -> list[tuple[Any, str, str, Any]]:
    """List point, policy, order and outcome of every replay in the file."""
    return [
        (point, policy, order, outcome)
        for point in json.loads(file.read_bytes())["points"]
        for policy, outcomes in point["runs"].items()
        for order, outcome in outcomes.items()
    ]


def mean_job_s(outcome: Any) -> float:
    return statistics.fmean(outcome["job_s"])
