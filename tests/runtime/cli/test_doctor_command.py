"""``python -m kvalet doctor`` as a user meets it: one line each, and a status."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import any_program, serve

PATIENCE_S = 60.0
WITHOUT = """
import sys
sys.modules[{name!r}] = None
from kvalet.runtime.cli import main
sys.argv = ["kvalet", "doctor"]
main()
"""


def doctor(
    folder: Path, *arguments: object, code: str | None = None, **environment: str
) -> tuple[int, list[tuple[str, str]]]:
    """Run the command; return its status and its lines, taken apart."""
    start = ["-m", "kvalet", "doctor"] if code is None else ["-c", code]
    done = subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        cwd=folder,
        env={
            **os.environ,
            "KVALET_CACHE_DIR": str(folder / "cache"),
            "KVALET_STORE": "",
            "KVALET_STORE_KEYS": "",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert not done.stderr
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return done.returncode, [(finding, text.strip()) for finding, _, text in lines]


def texts(lines: list[tuple[str, str]], finding: str) -> str:
    """Return the lines of one kind."""
    return "\n".join(text for kind, text in lines if kind == finding)


def test_all_is_well(tmp_path: Path) -> None:
    """Status 0; version, every extra's packages, engine, model and scratch folder."""
    status, lines = doctor(tmp_path)
    assert status == 0
    assert not texts(lines, "problem")
    said = texts(lines, "ok") + texts(lines, "warning")
    for part in (
        "on Python 3",
        "xllamacpp",
        "platformdirs",
        "the embedded engine loads",
        "free for state",
    ):
        assert part in said
    assert f"will be fetched to {tmp_path}" in said
    assert not list(tmp_path.iterdir())


def test_a_missing_engine_is_a_warning(tmp_path: Path) -> None:
    """An engine that can't be loaded is told of."""
    status, lines = doctor(tmp_path, code=WITHOUT.format(name="xllamacpp"))
    assert status == 0
    assert "the embedded engine loads" not in texts(lines, "ok")


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """A file where the cache folder should be is a problem: status 1."""
    (tmp_path / "cache").write_text("in the way")
    status, lines = doctor(tmp_path)
    assert status == 1
    assert f"can't write {tmp_path}/cache" in texts(lines, "problem")


def test_a_model_that_is_there(tmp_path: Path) -> None:
    """Its file is named, with its size."""
    models = tmp_path / "cache" / "models"
    models.mkdir(parents=True)
    (models / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(bytes(2_000_000))
    status, lines = doctor(tmp_path)
    assert status == 0
    assert "(2 MB)" in texts(lines, "ok")


def test_stores_that_work(tmp_path: Path) -> None:
    """Every tier is tried with a state, of which nothing is left."""
    with serve(any_program()) as server:
        status, lines = doctor(
            tmp_path, "--store", f"memory,disk:{tmp_path}/states,{server.url}"
        )
        assert status == 0, lines
        assert server.ask("KEYS", "*:m").startswith("*0")
    for part in ("the memory store", "the disk store works", "the redis store works"):
        assert part in texts(lines, "ok")
    left = [path.name for path in tmp_path.rglob("*.rows")]
    assert not left


def test_an_eviction_policy_is_a_warning(tmp_path: Path) -> None:
    """A Redis that would drop state silently is told of, and status 0."""
    with serve(any_program(), "--maxmemory-policy", "allkeys-lru") as server:
        status, lines = doctor(tmp_path, KVALET_STORE=server.url)
    assert status == 0
    assert "maxmemory-policy allkeys-lru" in texts(lines, "warning")


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        ("attic", "there is no store 'attic'"),
        ("redis://u:secret@127.0.0.1:1", "nobody answers at redis://u:***@127.0.0.1:1"),
        ("disk:/dev/null/x", "is not a folder"),
    ],
)
def test_a_store_that_does_not_work(tmp_path: Path, store: str, sentence: str) -> None:
    """It is a problem in one sentence, without its password: status 1."""
    status, lines = doctor(tmp_path, "--store", store)
    assert status == 1
    assert sentence in texts(lines, "problem")
    assert "secret" not in str(lines)


def test_keys(tmp_path: Path) -> None:
    """Good ones are named by their id; a wrong one is a problem, and does not show."""
    key = base64.b64encode(bytes(32)).decode()
    status, lines = doctor(tmp_path, KVALET_STORE_KEYS=f"2026:{key}")
    assert status == 0
    assert "sealed with key '2026'" in texts(lines, "ok")
    status, lines = doctor(tmp_path, KVALET_STORE_KEYS=f"2026:{key[4:]}")
    assert status == 1
    assert "AES-256 takes 32" in texts(lines, "problem")
    assert key[4:] not in str(lines)
