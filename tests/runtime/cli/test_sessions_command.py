"""``python -m kvalet sessions`` as a user meets it: status, sentences, tables."""

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kvalet.state_store import KVState, state_key
from kvalet.state_store.export import read_state
from kvalet.state_store.open import open_store
from tests.servers import any_program, serve, shared_server
from tests.state_store.states import make_rows

PATIENCE_S = 60.0
KEYS = f"a:{base64.b64encode(bytes(32)).decode()}"
STATES = (
    make_rows(state_key("acme", "build"), range(300)),
    make_rows(state_key("acme", "test"), range(200)),
    make_rows(state_key("other/co", "s"), range(100), model="m" * 64),
    make_rows("alone", range(10)),
)


def environment(**more: str) -> dict[str, str]:
    """Return an environment without a store or keys but those given."""
    return {**os.environ, "KVALET_STORE": "", "KVALET_STORE_KEYS": "", **more}


def sessions(
    store: str, *arguments: object, **more: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command on *store* to its end."""
    return subprocess.run(
        [sys.executable, "-m", "kvalet", "sessions", *map(str, arguments)],
        env=environment(KVALET_STORE=store, **more),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def listed(store: str, *arguments: str, **more: str) -> list[dict[str, Any]]:
    """Return what ``list --json`` prints."""
    done = sessions(store, "list", "--json", *arguments, **more)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["schema"] == "kvalet.sessions/1"
    found: list[dict[str, Any]] = content["sessions"]
    return found


async def park(store: str, states: Sequence[KVState] = STATES, keys: str = "") -> None:
    """Park *states*, and leave them there."""
    opened = await open_store(store, environment={"KVALET_STORE_KEYS": keys})
    async with aclosing(opened):
        for state in states:
            await opened.park(state)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run it on a loop of its own."""
    asyncio.run(work)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder with four states in it."""
    text = f"disk:{tmp_path}/states"
    run(park(text))
    return text


@pytest.fixture(params=["disk", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    """A folder, then a server with four states in it."""
    if request.param == "disk":
        text: str = request.getfixturevalue("folder")
        return text
    text = f"{shared_server().url}?prefix=cli-{uuid4().hex[:8]}"
    run(park(text))
    return text


# ---- list ----------------------------------------------------------------------------


def test_list(folder: str) -> None:
    """A row per session, by tenant: tokens, MB, segments and the model, cut short."""
    done = sessions(folder, "list")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head == ["tenant", "session", "tokens", "MB", "segments", "model"]
    assert rows == [
        ["alone", "10", "0.0", "1", "model"],
        ["acme", "build", "300", "0.0", "3", "model"],
        ["acme", "test", "200", "0.0", "2", "model"],
        ["other/co", "s", "100", "0.0", "1", "m" * 12],
    ]


def test_list_as_json(store: str) -> None:
    """One object with everything, keys as the other commands take them."""
    found = {row["key"]: row for row in listed(store)}
    assert set(found) == {state.manifest.key for state in STATES}
    row = found["acme/build"]
    assert (row["tenant"], row["session"]) == ("acme", "build")
    assert (row["tokens"], row["segments"]) == (300, 3)
    assert row["stored_bytes"] == STATES[0].manifest.length_bytes


def test_list_of_a_tenant(folder: str) -> None:
    """Only that tenant's; of one that has nothing it is said."""
    assert [row["session"] for row in listed(folder, "--tenant", "acme")] == [
        "build",
        "test",
    ]
    assert [row["session"] for row in listed(folder, "--tenant", "")] == ["alone"]
    done = sessions(folder, "list", "--tenant", "nobody")
    assert (done.returncode, done.stdout) == (
        0,
        "Nothing is parked for tenant 'nobody'.\n",
    )


def test_nothing_is_parked(tmp_path: Path) -> None:
    """An empty store is no error."""
    run(park(f"disk:{tmp_path}/states", []))
    done = sessions(f"disk:{tmp_path}/states", "list")
    assert (done.returncode, done.stdout) == (0, "Nothing is parked.\n")
    assert listed(f"disk:{tmp_path}/states") == []


def test_several_tiers_are_told_apart(store: str, tmp_path: Path) -> None:
    """Memory is left out; of the others it is said which one has a state."""
    second = f"disk:{tmp_path}/second"
    run(park(second, STATES[:1]))
    done = sessions(f"memory:1GiB,{second},{store}", "list")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split()[-1] in ("store", "model")
    assert done.stdout.count("build") == 2


def test_a_name_steers_no_terminal(tmp_path: Path) -> None:
    """Escape sequences and markup in a session's name are shown, not obeyed."""
    text = f"disk:{tmp_path}/states"
    name = state_key("", "a\x1b[31m\n[red]b[/nothing]")
    run(park(text, [make_rows(name, range(9))]))
    done = sessions(text, "list")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "[red]b[/nothing]" in done.stdout


def test_what_the_user_should_know() -> None:
    """Notes about the server's set-up are on standard error."""
    with serve(any_program(), "--maxmemory-policy", "allkeys-lru") as server:
        done = sessions(server.url, "list")
    assert (done.returncode, done.stdout) == (0, "Nothing is parked.\n")
    assert "maxmemory-policy allkeys-lru" in done.stderr


# ---- inspect -------------------------------------------------------------------------


def test_inspect(store: str) -> None:
    """The manifest, and that the state is what was parked; a second time as well."""
    for _ in range(2):
        done = sessions(store, "inspect", "acme/build")
        assert (done.returncode, done.stderr) == (0, "")
        shown = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
        assert shown["verified"].strip() == "yes"
        assert shown["tokens"].strip() == "300"
    done = sessions(store, "inspect", "other%2Fco/s", "--json")
    [state] = json.loads(done.stdout)["states"]
    assert (state["tenant"], state["verified"]) == ("other/co", True)
    assert state["token_hash"] == STATES[2].manifest.token_hash


def test_inspect_finds_a_flipped_bit(tmp_path: Path) -> None:
    """A damaged state is shown with what is wrong with it: status 1."""
    text = f"disk:{tmp_path}/states"
    run(park(text, STATES[:1]))
    path = sorted(tmp_path.rglob("*.rows"))[0]
    damaged = bytearray(path.read_bytes())
    damaged[5] ^= 1
    path.write_bytes(damaged)
    done = sessions(text, "inspect", "acme/build", "--json")
    assert done.returncode == 1
    [state] = json.loads(done.stdout)["states"]
    assert (state["verified"], state["removed"]) == (False, True)
    assert "fails its checksum" in state["reason"]
    assert "fails its checksum" in done.stderr
    assert sessions(text, "inspect", "acme/build").returncode == 2


def test_looking_takes_nothing_from_the_owner() -> None:
    """While another process owns a session, it can be listed, inspected, exported."""
    text = f"{shared_server().url}?prefix=cli-{uuid4().hex[:8]}"

    async def look() -> None:
        owner = await open_store(text, environment={})
        async with aclosing(owner):
            await owner.park(STATES[0])
            for arguments in (["list"], ["inspect", "acme/build"]):
                done = await asyncio.to_thread(sessions, text, *arguments)
                assert done.returncode == 0, done.stderr
            done = await asyncio.to_thread(sessions, text, "drop", "acme/build")
            assert done.returncode == 1
            assert "is owned by" in done.stderr
            await owner.park(make_rows("acme/build", range(400), 300))

    run(look())


# ---- export --------------------------------------------------------------------------


def test_export(store: str, tmp_path: Path) -> None:
    """A file that reads back as what was parked, for its owner only."""
    path = tmp_path / "state"
    done = sessions(store, "export", "acme/build", path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "300 tokens" in done.stderr
    assert read_state(path) == STATES[0]
    assert path.stat().st_mode & 0o777 == 0o600


def test_export_to_where_nothing_can_be(folder: str, tmp_path: Path) -> None:
    """A folder that isn't there is wrong input."""
    done = sessions(folder, "export", "acme/build", tmp_path / "nowhere" / "state")
    assert done.returncode == 2
    assert "can't be written: No such file or directory" in done.stderr


# ---- drop ----------------------------------------------------------------------------


def test_drop(store: str) -> None:
    """Those that are named are gone, the others are there."""
    done = sessions(store, "drop", "acme/build", "alone")
    assert done.returncode == 0, done.stderr
    assert "dropped 2 of 2" in done.stderr
    assert {row["key"] for row in listed(store)} == {"acme/test", "other%2Fco/s"}


def test_drop_what_is_not_there(folder: str) -> None:
    """A key that holds nothing is wrong input; the others are dropped all the same."""
    done = sessions(folder, "drop", "nothing", "alone")
    assert done.returncode == 2
    assert "nothing is parked under 'nothing'" in done.stderr
    assert "alone" not in {row["key"] for row in listed(folder)}


def test_drop_everything(store: str) -> None:
    """Of a tenant, then of all; not without being sure."""
    assert sessions(store, "drop", "--all").returncode == 2
    assert len(listed(store)) == 4
    assert sessions(store, "drop", "--all", "--yes", "--tenant", "acme").returncode == 0
    assert {row["key"] for row in listed(store)} == {"alone", "other%2Fco/s"}
    assert sessions(store, "drop", "--all", "--yes").returncode == 0
    assert listed(store) == []


# ---- wrong input ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("attic", ["list"], "there is no store 'attic'; valid are memory"),
        ("memory:1GiB", ["list"], "a memory store is gone with its process"),
        ("disk:/nowhere/at/all", ["list"], "there is no folder '/nowhere/at/all'"),
        ("redis://u:secret@127.0.0.1:1", ["list"], "nobody answers at redis://u:***@"),
        ("redis://127.0.0.1:1?colour=red", ["list"], "no option 'colour'"),
        ("disk:x", ["drop"], "name the keys to drop, or give --all"),
        ("disk:x", ["drop", "a", "--all"], "name the keys to drop, or give --all"),
        ("disk:x", ["drop", "a", "--tenant", "t"], "--tenant goes with --all"),
    ],
)
def test_wrong_input(text: str, arguments: list[str], sentence: str) -> None:
    """Status 2, one sentence, no traceback and no password."""
    done = sessions(text, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr


@pytest.mark.parametrize("command", [["inspect"], ["export"]])
def test_a_key_that_holds_nothing(
    folder: str, tmp_path: Path, command: list[str]
) -> None:
    """Status 2, and where the keys are shown; nothing is written."""
    more = [tmp_path / "file"] if command == ["export"] else []
    done = sessions(folder, *command, "nothing", *more)
    assert done.returncode == 2
    assert "nothing is parked under 'nothing'; kvalet sessions list" in done.stderr
    assert not (tmp_path / "file").exists()


# ---- keys ----------------------------------------------------------------------------


def test_encrypted(tmp_path: Path) -> None:
    """With the keys of the environment; the export is not encrypted."""
    text = f"disk:{tmp_path}/states"
    run(park(text, keys=KEYS))
    assert len(listed(text, KVALET_STORE_KEYS=KEYS)) == 4
    path = tmp_path / "state"
    done = sessions(text, "export", "alone", path, KVALET_STORE_KEYS=KEYS)
    assert done.returncode == 0, done.stderr
    assert read_state(path) == STATES[3]
    done = sessions(text, "list")
    assert done.returncode == 2
    assert "other keys" in done.stderr


def test_encrypted_redis_without_keys() -> None:
    """What can't be opened isn't listed, and does no harm."""
    text = f"{shared_server().url}?prefix=cli-{uuid4().hex[:8]}"
    run(park(text, keys=KEYS))
    assert len(listed(text, KVALET_STORE_KEYS=KEYS)) == 4
    assert listed(text) == []
    other = f"b:{base64.b64encode(bytes([1]) * 32).decode()}"
    done = sessions(text, "list", KVALET_STORE_KEYS=other)
    assert done.returncode == 0
    assert "Nothing is parked that the keys in KVALET_STORE_KEYS open." in done.stdout


def test_interrupted() -> None:
    """Ctrl-C while the server does not answer: status 130, no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}?timeout=3s"
        process = subprocess.Popen(
            [sys.executable, "-m", "kvalet", "sessions", "list"],
            env=environment(KVALET_STORE=url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (130, "")
    assert "Traceback" not in errors
