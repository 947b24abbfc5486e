"""``python -m kvalet replay`` as a user meets it: exit status, sentences, files."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvalet.runtime.traces import write_trace
from tests.runtime.traces.builders import (
    HEADER,
    make_family,
    step_line,
    tool_line,
    write_lines,
)

# Whatever a run prints, it must end well before this.
PATIENCE_S = 60.0


def environment(temporary: Path) -> dict[str, str]:
    """Return an environment whose temporary files go to a folder of the test's."""
    return {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "100"}


def command(*arguments: object) -> list[str]:
    """Return the command line."""
    return [sys.executable, "-m", "kvalet", "replay", *map(str, arguments)]


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


def good_trace(folder: Path) -> Path:
    """Write a trace of a parent and its subagent."""
    path = folder / "good.jsonl"
    write_trace(make_family(), path)
    return path


# ---- a good run ----------------------------------------------------------------------


def test_a_good_run(tmp_path: Path) -> None:
    """Status 0, a table on standard output, report.json in the current folder."""
    trace = good_trace(tmp_path)
    result = kvalet(tmp_path, trace, "--backend", "simulated")
    assert (result.returncode, "Traceback" in result.stderr) == (0, False)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["schema"], report["partial"]) == ("kvalet.report/1", False)
    assert [run["policy"] for run in report["runs"]] == ["drop", "keep", "park", "auto"]
    assert {run["turns"] for run in report["runs"]} == {4}
    assert "park" in result.stdout and "time to first token" in result.stdout
    assert "report.json" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"good.jsonl", "report.json"}


def test_the_same_command_writes_the_same_report(tmp_path: Path) -> None:
    """Byte for byte, in another process, with another hash seed."""
    trace = good_trace(tmp_path)
    for name in ("one.json", "two.json"):
        arguments = (trace, "--backend", "simulated", "--seed", 5, "--report", name)
        assert kvalet(tmp_path, *arguments).returncode == 0
    one, two = (tmp_path / name for name in ("one.json", "two.json"))
    assert one.read_bytes() == two.read_bytes()


def test_events_are_logged_as_json(tmp_path: Path) -> None:
    """--log json puts one object per event on standard error, with its policy."""
    result = kvalet(
        tmp_path,
        good_trace(tmp_path),
        *("--backend", "simulated", "--policy", "park", "--log", "json"),
    )
    records = [json.loads(x) for x in result.stderr.splitlines() if x.startswith("{")]
    names = {record["event"] for record in records}
    assert names >= {
        "session_opened",
        "tool_ended",
        "copied",
        "restored",
        "decode_done",
    }
    assert {record["policy"] for record in records} == {"park"}


# ---- bad input -----------------------------------------------------------------------


def check_refusal(
    folder: Path, result: "subprocess.CompletedProcess[str]", *words: str
) -> None:
    """Status 2, one sentence with these words, no traceback, no report."""
    assert result.returncode == 2, result.stderr
    *progress, sentence = result.stderr.splitlines()
    assert all(line.startswith("kvalet: ") for line in progress), result.stderr
    assert sentence.startswith("kvalet: ")
    for word in words:
        assert word in sentence
    assert result.stdout == ""
    assert list(folder.rglob("*.json")) == []
    assert list(folder.rglob("*.tmp")) == []


Lines = Sequence[Mapping[str, Any] | str]
BAD_TRACES: dict[str, tuple[Lines, tuple[str, ...]]] = {
    "empty": ((), ("bad.jsonl", "the file is empty")),
    "not JSON": (("this is no JSON",), ("bad.jsonl:1",)),
    "broken JSON": ((HEADER, '{"type":"step",'), ("bad.jsonl:2", "not JSON")),
    "wrong version": (
        ({**HEADER, "schema": "kvalet.trace/9"}, step_line()),
        ("bad.jsonl:1", "kvalet.trace/9", "kvalet.trace/1"),
    ),
    "step out of order": (
        (HEADER, step_line(0), step_line(2)),
        ("bad.jsonl:3", "step 2 of session 'a' is out of order", "expected step 1"),
    ),
    "negative time": (
        (HEADER, step_line(0, t_ms=-5)),
        ("bad.jsonl:2", "t_ms"),
    ),
    "negative tool time": (
        (HEADER, step_line(0, tools=[tool_line(dur_ms=-1)])),
        ("bad.jsonl:2", "dur_ms"),
    ),
    "no session": ((HEADER,), ("bad.jsonl", "no session")),
}


@pytest.mark.parametrize("name", BAD_TRACES)
def test_a_bad_trace(tmp_path: Path, name: str) -> None:
    """What is wrong with a file is said with its line and field."""
    lines, words = BAD_TRACES[name]
    path = write_lines(tmp_path / "bad.jsonl", *lines)
    check_refusal(tmp_path, kvalet(tmp_path, path, "--backend", "simulated"), *words)


def test_a_missing_trace(tmp_path: Path) -> None:
    """A file that isn't there is named."""
    result = kvalet(tmp_path, "nowhere.jsonl", "--backend", "simulated")
    check_refusal(tmp_path, result, "nowhere.jsonl", "no such file")


BAD_OPTIONS: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "policy": (
        ("--policy", "drop,thrift"),
        ("'thrift'", "drop, hold:SECONDS, infercept, keep"),
    ),
    "policy's time": (("--policy", "hold:soon"), ("'hold:soon'", "hold:2")),
    "policy's parameter": (("--policy", "park:3"), ("'park' takes no parameter",)),
    "no policy": (("--policy", ","), ("names no policy",)),
    "policy twice": (("--policy", "park,park"), ("twice",)),
    "backend": (("--backend", "abacus"), ("'abacus'", "llama, simulated")),
    "slots": (("--slots", 0), ("--slots must be at least 1, not 0",)),
    "store": (("--store", "attic"), ("'attic'", "memory:SIZE")),
    "store's size": (("--store", "memory:lots"), ("'lots'", "512MiB")),
    "store of nothing": (("--store", "memory:0"), ("'0' is no size",)),
    "sessions": (("--sessions", 0), ("at least 1, not 0",)),
    "concurrency": (("--concurrency", 0), ("--concurrency must be at least 1",)),
    "prefills": (("--max-prefills", 0), ("max_prefills must be at least 1",)),
    "token scale": (("--token-scale", 0), ("token",)),
    "time scale": (("--time-scale", -1), ("time",)),
    "context": (("--context", 10), ("the longest context of the trace has",)),
    "kv tokens": (("--kv-tokens", 10), ("the longest context of the trace has",)),
    "model": (("--model", "x.gguf"), ("--model goes with --backend llama",)),
    "report in no folder": (("--report", "none/r.json"), ("none/r.json",)),
    "report is a folder": (("--report", "."), ("is a folder",)),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_bad_option(tmp_path: Path, name: str) -> None:
    """The sentence shows the value and says what would be valid."""
    arguments, words = BAD_OPTIONS[name]
    result = kvalet(
        tmp_path, good_trace(tmp_path), "--backend", "simulated", *arguments
    )
    check_refusal(tmp_path, result, *words)


def test_a_model_that_is_none(tmp_path: Path) -> None:
    """A file that is no GGUF is named before any engine is started."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"not a model" * 100)
    result = kvalet(tmp_path, good_trace(tmp_path), "--model", model)
    check_refusal(tmp_path, result, "model.gguf")


def test_a_missing_model(tmp_path: Path) -> None:
    """A model that isn't there is named."""
    result = kvalet(tmp_path, good_trace(tmp_path), "--model", "nowhere.gguf")
    check_refusal(tmp_path, result, "nowhere.gguf")


def test_more_slots_than_the_model_has(tmp_path: Path, tiny_gguf: Path) -> None:
    """The engine's limit is said."""
    arguments = ("--model", tiny_gguf, "--slots", 100_000)
    result = kvalet(tmp_path, good_trace(tmp_path), *arguments)
    check_refusal(tmp_path, result, "slots", "100000")


# ---- interruption --------------------------------------------------------------------


def long_trace(folder: Path) -> Path:
    """Write a trace whose second session waits for an hour-long tool."""
    tools = [tool_line("t1", dur_ms=3_600_000)]
    return write_lines(
        folder / "long.jsonl",
        HEADER,
        step_line(0, tools=tools, next="tool", input_tokens=60, new_tokens=60),
        step_line(1, input_tokens=80, new_tokens=80),
    )


def descendants(of: int) -> list[int]:
    """Return the processes that have *of* among their ancestors."""
    parents = dict[int, int]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [of]
    for ancestor in found:
        found.extend(child for child, parent in parents.items() if parent == ancestor)
    return found[1:]


def leftovers(folders: Sequence[Path]) -> set[Path]:
    """Return what lies in the folders where an engine keeps its files."""
    return {path for folder in folders if folder.exists() for path in folder.iterdir()}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run(
    tmp_path: Path, tiny_gguf: Path, number: signal.Signals
) -> None:
    """Status 130, a partial report, no process and no temporary file left."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    trace = long_trace(tmp_path)
    shared = [path for path in (Path("/dev/shm"),) if path.exists()]
    before = leftovers(shared)
    arguments = ("--model", tiny_gguf, "--policy", "park", "--log", "json")
    with subprocess.Popen(
        command(trace, *arguments),
        cwd=tmp_path,
        env=environment(temporary),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            said = list[str]()
            for line in process.stderr:
                said.append(line)
                if '"event": "copied"' in line:
                    break
            children = descendants(process.pid)
            assert children, "".join(said)
            process.send_signal(number)
            output, rest = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    assert "kvalet: the partial report is in report.json" in rest
    assert output == ""
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["partial"] is True
    assert [(run["policy"], run["turns"]) for run in report["runs"]] == [("park", 1)]
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []
    assert list(temporary.iterdir()) == []
    mine = [p for p in leftovers(shared) - before if "kvalet" in p.name]
    assert mine == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_an_engine_that_dies_during_a_run(tmp_path: Path, tiny_gguf: Path) -> None:
    """It is replaced, the replay goes on, no turn is lost, and the report says so."""
    trace = write_lines(
        tmp_path / "long.jsonl",
        HEADER,
        step_line(
            0,
            tools=[tool_line("t1", dur_ms=1500)],
            next="tool",
            input_tokens=60,
            new_tokens=60,
        ),
        step_line(1, input_tokens=80, new_tokens=80),
    )
    with subprocess.Popen(
        command(trace, "--model", tiny_gguf, "--policy", "keep", "--log", "json"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if '"event": "tool_started"' in line:
                break
        for child in descendants(process.pid):
            os.kill(child, signal.SIGKILL)
        _, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, rest
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["partial"] is False
    [run] = report["runs"]
    assert (run["turns"], run["lost_turns"], run["engine_restarts"]) == (2, 0, 1)
