"""What a folder does beyond the contract: it survives kills, and shows no names."""

import asyncio
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from kvalet.state_store import (
    BLOCK_TOKENS,
    DiskStore,
    KVState,
    Manifest,
    Payload,
    StateCorrupt,
    StateMissing,
    StoreUnavailable,
    StoreUnusable,
)
from kvalet.state_store.sealing import PlainSealer

from .disk_child import BUDGET_BYTES, KEYS, state_of
from .harness import flip, rows_file
from .states import make_rows, make_state

pytestmark = pytest.mark.asyncio

ROOT = Path(__file__).parents[2]
CHILD = [sys.executable, "-m", "tests.state_store.disk_child"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that isn't there yet."""
    return tmp_path / "some" / "states"


def files_in(folder: Path, pattern: str = "*/*") -> list[Path]:
    """Return the files of states."""
    return [path for path in folder.glob(pattern) if path.parent.name != "store"]


async def keys_of(store: DiskStore) -> list[str]:
    """Return the keys, the least recently used first."""
    keys = store.keys()
    return [key async for key in keys]


# What lies there.


async def test_nobody_else_may_look(folder: Path) -> None:
    """Folders have mode 0700 and files 0600, whatever the umask says."""
    before = os.umask(0)
    try:
        store = await DiskStore.open(folder)
        await store.park(make_state("t/a"))
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path
    await store.aclose()


async def test_no_name_shows(folder: Path) -> None:
    """Neither a tenant nor a session can be told from the names of files."""
    store = await DiskStore.open(folder)
    await store.park(make_state("tenant/session"))
    names = " ".join(str(path.relative_to(folder)) for path in folder.rglob("*"))
    assert "tenant" not in names and "session" not in names
    assert sorted(path.suffix for path in files_in(folder)) == [".rows", ".state"]
    await store.aclose()


async def test_what_is_not_needed_is_unlinked(folder: Path) -> None:
    """By a replacement, an eviction and a drop: manifests and segments."""
    store = await DiskStore.open(folder, budget_bytes=1 << 20)
    await store.park(make_rows("a", [1] * 300, unstored_bytes=600_000))
    assert len(files_in(folder)) == 1 + 2
    await store.park(make_rows("a", [1] * 128, unstored_bytes=600_000))
    assert len(files_in(folder)) == 1 + 1
    await store.park(make_rows("b", [2] * 5, unstored_bytes=600_000))
    assert len(files_in(folder)) == 1 + 1
    await store.drop("b")
    assert files_in(folder) == []
    await store.aclose()


# The next process.


async def test_the_order_of_use_survives(folder: Path) -> None:
    """And so does the number of the next file."""
    store = await DiskStore.open(folder)
    for key in ("t/a", "u/b", "t/c"):
        await store.park(make_state(key))
    await store.fetch("t/a")
    await store.aclose()
    store = await DiskStore.open(folder)
    assert await keys_of(store) == ["u/b", "t/c", "t/a"]
    await store.park(make_state("u/b", b"new"))
    await store.aclose()
    store = await DiskStore.open(folder)
    assert (await store.fetch("u/b"))[0].payloads == (b"new",)
    await store.aclose()


async def test_a_smaller_budget_displaces_the_oldest(folder: Path) -> None:
    """Also states that are larger than the whole of it; shared rows stay."""
    store = await DiskStore.open(folder)
    for key, units in (("t/a", 3), ("t/huge", 9), ("t/b", 3), ("t/c", 3)):
        state = make_rows(key, [1] * 200, unstored_bytes=units * 200_000)
        await store.park(state)
    await store.aclose()
    store = await DiskStore.open(folder, budget_bytes=1_300_000)
    assert await keys_of(store) == ["t/b", "t/c"]
    assert (await store.stat()).stored_bytes == 1_200_000 + 200 * 32
    for key in ("t/b", "t/c"):
        await store.fetch(key)
    assert len(files_in(folder)) == 2 + 2
    await store.aclose()


async def test_what_a_crash_may_leave_is_swept(folder: Path) -> None:
    """Unfinished files, segments of no state, a manifest that was replaced."""
    store = await DiskStore.open(folder)
    await store.park(make_state("a", b"old"))
    (old,) = files_in(folder, "*/*.state")
    saved = old.read_bytes()
    await store.park(make_state("a", b"new"))
    kept = set(files_in(folder))
    await store.aclose()
    old.write_bytes(saved)
    inside = old.parent
    digest = "0123456789abcdef" * 2
    (inside / f"{digest}.ff.rows").write_bytes(b"of no state")
    (inside / f"{digest}.fe.rows.part").write_bytes(b"unfinished")
    (inside / f"{digest}.fd.state.part").write_bytes(b"unfinished")
    (inside / "notes.txt").write_text("not ours")
    (folder / digest).mkdir()
    store = await DiskStore.open(folder)
    assert set(files_in(folder)) == {*kept, inside / "notes.txt"}
    assert not (folder / digest).exists()
    assert (await store.fetch("a"))[0].payloads == (b"new",)
    assert (await store.stat()).refused == {}
    await store.aclose()


async def test_an_unreadable_manifest_gives_way_to_the_one_before(folder: Path) -> None:
    """After a power cut the last one written may be empty."""
    store = await DiskStore.open(folder)
    await store.park(make_state("a", b"old"))
    saved = {path: path.read_bytes() for path in files_in(folder)}
    await store.park(make_state("a", b"new"))
    (new,) = files_in(folder, "*/*.state")
    await store.aclose()
    for path, data in saved.items():
        path.write_bytes(data)
    new.write_bytes(b"")
    store = await DiskStore.open(folder)
    assert (await store.fetch("a"))[0].payloads == (b"old",)
    assert not new.exists()
    await store.aclose()


@pytest.mark.parametrize("damage", ["flip", "empty", "cut", "rename", "no rows"])
async def test_a_damaged_state_is_gone_and_counted(folder: Path, damage: str) -> None:
    """A manifest that can't be trusted, or whose rows are not there, is removed."""
    store = await DiskStore.open(folder)
    for key in ("a", "b"):
        await store.park(make_state(key, key.encode()))
    sealer = PlainSealer()
    (manifest,) = folder.glob(f"*/{sealer.name('', 'a')}.*.state")
    await store.aclose()
    match damage:
        case "flip":
            flip(manifest, -1)
        case "empty":
            manifest.write_bytes(b"")
        case "cut":
            manifest.write_bytes(manifest.read_bytes()[:-1])
        case "rename":
            manifest.rename(manifest.with_name(f"{sealer.name('', 'c')}.f.state"))
        case _:
            os.unlink(*manifest.parent.glob(f"{sealer.name('', address(b'a'))}.*.rows"))
    store = await DiskStore.open(folder)
    assert await keys_of(store) == ["b"]
    assert (await store.stat()).refused == {"corrupt": 1}
    assert len(files_in(folder)) == 2
    await store.aclose()


def address(payload: bytes) -> str:
    """Return the address of a payload."""
    return make_state("any", payload).manifest.segments[0].address


@pytest.mark.parametrize("damage", ["cut", "empty", "longer", "unlinked", "all"])
async def test_damaged_rows_are_found(folder: Path, damage: str) -> None:
    """Whatever has become of the file: the state is corrupt, then gone."""
    store = await DiskStore.open(folder)
    await store.park(make_state("a", b"some rows"))
    path = rows_file(folder, "a", address(b"some rows"))
    match damage:
        case "cut":
            path.write_bytes(b"some row")
        case "empty":
            path.write_bytes(b"")
        case "longer":
            path.write_bytes(b"some rows!")
        case "unlinked":
            path.unlink()
        case _:
            shutil.rmtree(path.parent)
    with pytest.raises(StateCorrupt, match="'a'"):
        await store.fetch("a")
    with pytest.raises(StateMissing):
        await store.find("a")
    assert (await store.stat()).refused == {"corrupt": 1}
    assert files_in(folder) == []
    await store.park(make_state("a"))
    await store.fetch("a")
    await store.aclose()


async def test_a_killed_process_leaves_states_as_they_were_or_were_to_be(
    folder: Path,
) -> None:
    """At whatever point it is killed, over and over, on one folder."""
    chance = random.Random(4)
    held: dict[str, int] = {}
    for round_number in range(1, 13):
        allowed = _park_and_kill(folder, round_number, chance.randint(1, 40), held)
        store = await DiskStore.open(folder, budget_bytes=BUDGET_BYTES)
        found = {key: await _version_of(store, key) for key in KEYS}
        for key, version in found.items():
            assert version in allowed[key]
        status = await store.stat()
        assert status.refused == {} and status.stored_bytes <= BUDGET_BYTES
        shared = {
            (key.split("/")[0], segment.address): segment.length_bytes
            for key, version in found.items()
            if version
            for segment in (await store.find(key)).segments
        }
        on_disk = [path.stat().st_size for path in files_in(folder, "*/*.rows")]
        assert sorted(on_disk) == sorted(shared.values())
        assert len(files_in(folder)) == len(on_disk) + status.states
        held = found
        await store.aclose()


def _park_and_kill(
    folder: Path, seed: int, lines: int, held: dict[str, int]
) -> dict[str, set[int]]:
    """Let a child work until it has said so much; return what each key may hold."""
    allowed = {key: {held.get(key, 0)} for key in KEYS}
    command = [*CHILD, "park", str(folder), str(seed)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(lines):
            _note(child.stdout.readline(), allowed)
        child.kill()
        for line in child.stdout:
            _note(line, allowed)
    return allowed


def _note(line: str, allowed: dict[str, set[int]]) -> None:
    did, key, version = line.split()
    if did in ("park", "drop"):
        allowed[key].add(int(version))
        if did == "park":  # which may displace any other before it says so
            for other in allowed.values():
                other.add(0)
    elif did == "parked":
        allowed[key] = {int(version)}
    else:
        allowed[key] = {0}


async def _version_of(store: DiskStore, key: str) -> int:
    """Return which version the key holds, to the byte; 0 if nothing."""
    try:
        state, _ = await store.fetch(key)
    except StateMissing:
        return 0
    version = int.from_bytes(bytes(state.payloads[-1][-4:]), "little")
    assert state == state_of(key, version)
    return version


# Full and failing disks.


@pytest.mark.parametrize("how", ["file size", "tmpfs"])
async def test_a_full_disk_is_a_full_store(folder: Path, how: str) -> None:
    """What was partly written is removed, what was there stays, smaller states fit."""
    command = [*CHILD, "fill_up_to_a_file_size", str(folder)]
    if how == "tmpfs":
        folder.mkdir(parents=True)
        mount = f'mount -t tmpfs -o size=256k none "{folder}" && exec "$@"'
        in_namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount]
        if not shutil.which("unshare") or _fails([*in_namespace, "sh", "true"]):
            pytest.skip("no file system can be mounted here")
        command = [*in_namespace, "sh", *CHILD, "fill", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    full, missing, stat = done.stdout.splitlines()
    assert full.startswith(f"state 'large' does not fit into {str(folder)!r}: ")
    assert missing == "large is missing"
    assert stat == "{'full': 1} 1"
    if how != "tmpfs":
        store = await DiskStore.open(folder)
        assert await keys_of(store) == ["small"]
        assert len(files_in(folder)) == 3  # a manifest and two segments
        await store.aclose()


def _fails(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


async def test_a_folder_that_goes_away_makes_the_store_unavailable(
    folder: Path,
) -> None:
    """It is said and counted, call by call, and nothing else happens."""
    store = await DiskStore.open(folder)
    shutil.rmtree(folder)
    for count in (1, 2):
        with pytest.raises(StoreUnavailable, match="'a' can't be kept in"):
            await store.park(make_state("a"))
        assert (await store.stat()).refused == {"unavailable": count}
    assert await keys_of(store) == []
    await store.aclose()


# Folders that can't be used.


async def test_a_folder_has_one_store(folder: Path) -> None:
    """In this process and in others, until the one lets go or is killed."""
    store = await DiskStore.open(folder)
    with pytest.raises(StoreUnusable, match="is in use by another store"):
        await DiskStore.open(folder)
    await store.aclose()
    await store.aclose()
    command = [*CHILD, "park", str(folder), "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(StoreUnusable, match="is in use by another store"):
            await DiskStore.open(folder)
        child.kill()
        child.stdout.read()
    await (await DiskStore.open(folder)).aclose()


def _a_file(path: Path) -> None:
    path.write_text("")


def _a_link(path: Path) -> None:
    (path.parent / "target").mkdir()
    path.symlink_to(path.parent / "target")


def _foreign(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("")


@pytest.mark.parametrize(
    ("prepare", "below", "sentence"),
    [
        (_a_file, "", "is not a folder"),
        (_a_file, "x/y", "lies below something that is none"),
        (_a_link, "", "is a link"),
        (_foreign, "", "holds other files, such as 'thesis.tex'"),
    ],
)
async def test_a_wrong_folder_is_said_in_a_sentence(
    tmp_path: Path, prepare: Callable[[Path], None], below: str, sentence: str
) -> None:
    """And nothing in it is touched."""
    prepare(tmp_path / "folder")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreUnusable, match=sentence) as caught:
        await DiskStore.open(tmp_path / "folder" / below)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def somebody() -> Iterator[Path]:
    """A folder, and rights to it, as somebody who isn't root."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "closed").mkdir(mode=0o500)
        (folder / "roots").mkdir()
        if user == 0:  # to whom nothing is closed
            os.chown(folder / "closed", 65534, 65534)
            folder.chmod(0o755)
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(user)


async def test_an_unwritable_folder_is_said_in_a_sentence(somebody: Path) -> None:
    """Whether it is there or is to be made."""
    for path in (somebody / "closed", somebody / "closed" / "new"):
        with pytest.raises(StoreUnusable, match="can't be written: Permission denied"):
            await DiskStore.open(path)


async def test_another_users_folder_is_said_in_a_sentence(somebody: Path) -> None:
    """Even if it could be written."""
    if (somebody / "roots").stat().st_uid == os.geteuid():
        pytest.skip("only root can give a folder to somebody else")
    with pytest.raises(StoreUnusable, match="belongs to another user"):
        await DiskStore.open(somebody / "roots")


async def test_a_tiny_budget_is_said_in_a_sentence(folder: Path) -> None:
    """Before anything is made."""
    with pytest.raises(StoreUnusable, match="1,048,575 bytes holds no state"):
        await DiskStore.open(folder, budget_bytes=(1 << 20) - 1)
    assert not folder.exists()


class MarkingSealer(PlainSealer):
    """Puts its key and the label before the data, and wants them there."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def seal(self, tenant: str, label: str, data: Payload) -> Payload:
        return self._mark(tenant, label) + data

    def open(self, tenant: str, label: str, data: Payload) -> Payload:
        mark = self._mark(tenant, label)
        if data[: len(mark)] != mark:
            raise StateCorrupt("sealed as something else")
        return data[len(mark) :]

    def _mark(self, tenant: str, label: str) -> bytes:
        return b"%s|%s|%s|" % (self.key, tenant.encode(), label.encode())


async def test_everything_is_sealed_under_its_name(folder: Path) -> None:
    """A file that is put in another's place does not open."""
    sealer = MarkingSealer(b"key")
    store = await DiskStore.open(folder, sealer=sealer)
    state = make_rows("t/a", [*range(300)])
    await store.park(state)
    await store.aclose()
    store = await DiskStore.open(folder, sealer=sealer)
    assert (await store.fetch("t/a"))[0] == state
    assert len(files_in(folder)) == 4
    for path in files_in(folder):
        start = b"key||" if path.suffix == ".state" else b"key|t|"
        assert start + path.name.encode() in path.read_bytes()
    first, second, _ = files_in(folder, "*/*.rows")
    first.write_bytes(second.read_bytes())
    with pytest.raises(StateCorrupt):
        await store.fetch("t/a")
    await store.aclose()


async def test_other_keys_are_said_in_a_sentence(folder: Path) -> None:
    """Nothing is removed because of them."""
    store = await DiskStore.open(folder, sealer=MarkingSealer(b"right"))
    await store.park(make_state("a"))
    await store.aclose()
    for sealer in (MarkingSealer(b"wrong"), PlainSealer()):
        with pytest.raises(StoreUnusable, match="written with other keys"):
            await DiskStore.open(folder, sealer=sealer)
    store = await DiskStore.open(folder, sealer=MarkingSealer(b"right"))
    await store.fetch("a")
    await store.aclose()


# Calls that meet.


class Gate(PlainSealer):
    """Holds up whoever writes rows that begin with ``SLOW``, until it is opened."""

    SLOW = b"slow"

    def __init__(self) -> None:
        self.reached, self.opened = Event(), Event()

    def seal(self, tenant: str, label: str, data: Payload) -> Payload:
        if data[:4] == self.SLOW:
            self.reached.set()
            self.opened.wait()
        return data


def slow_state(key: str, text: list[int], first_token: int = 0) -> KVState:
    """Return a state whose last rows are held up by a gate."""
    state = make_rows(key, text, first_token)
    rows = memoryview(state.payloads[-1])
    rows[:4] = Gate.SLOW
    ends = [segment.end_token for segment in state.manifest.segments]
    return KVState.seal_segments(
        key=key,
        model="model",
        engine="engine",
        layout="layout",
        token_ids=text,
        ends=ends,
        payloads=state.payloads,
        first_token=first_token,
    )


async def _held_up(
    store: DiskStore, gate: Gate, state: KVState
) -> asyncio.Task[object]:
    parking = asyncio.create_task(store.park(state))
    await asyncio.to_thread(gate.reached.wait)
    return parking


async def test_a_rest_whose_beginning_leaves_meanwhile_is_missing(folder: Path) -> None:
    """It is not put behind nothing, and leaves nothing."""
    gate = Gate()
    store = await DiskStore.open(folder, budget_bytes=1 << 20, sealer=gate)
    await store.park(make_rows("t/a", [1] * 200))
    parking = await _held_up(store, gate, slow_state("t/a", [1] * 300, 200))
    receipt = await store.park(make_rows("t/b", [2], unstored_bytes=(1 << 20) - 32))
    assert receipt.evicted == ("t/a",)
    gate.opened.set()
    with pytest.raises(StateMissing, match="lost while it was parked"):
        await parking
    assert await keys_of(store) == ["t/b"]
    assert len(files_in(folder)) == 2
    await store.aclose()


async def test_rows_that_a_park_shares_stay_until_it_is_done(folder: Path) -> None:
    """Even if the only state that had them is dropped meanwhile."""
    gate = Gate()
    store = await DiskStore.open(folder, sealer=gate)
    text = [1] * BLOCK_TOKENS
    await store.park(make_rows("t/a", text))
    state = slow_state("t/b", [*text, 2])
    parking = await _held_up(store, gate, state)
    await store.drop("t/a")
    gate.opened.set()
    await parking
    assert (await store.fetch("t/b"))[0] == state
    await store.drop("t/b")
    assert files_in(folder) == []
    await store.aclose()


async def test_rows_found_to_be_wrong_are_not_shared_by_a_park_on_its_way(
    folder: Path,
) -> None:
    """It fails, and can be repeated."""
    gate = Gate()
    store = await DiskStore.open(folder, sealer=gate)
    text = [1] * BLOCK_TOKENS
    await store.park(first := make_rows("t/a", text))
    state = slow_state("t/b", [*text, 2])
    parking = await _held_up(store, gate, state)
    flip(rows_file(folder, "t/a", first.manifest.segments[0].address))
    with pytest.raises(StateCorrupt):
        await store.fetch("t/a")
    gate.opened.set()
    with pytest.raises(StoreUnavailable, match="'t/b' shares were found to be corrupt"):
        await parking
    assert files_in(folder) == []
    await store.park(state)
    assert (await store.fetch("t/b"))[0] == state
    await store.aclose()


async def test_a_call_waits_for_its_key_and_no_other(folder: Path) -> None:
    """While one is held up, other keys are served; then they take their turns."""
    gate = Gate()
    store = await DiskStore.open(folder, sealer=gate)
    parking = await _held_up(store, gate, slow_state("t/a", [1]))
    dropping = asyncio.create_task(store.drop("t/a"))
    await store.park(make_state("t/b"))
    await store.fetch("t/b")
    assert not dropping.done()
    gate.opened.set()
    await asyncio.gather(parking, dropping)
    assert await keys_of(store) == ["t/b"]
    await store.aclose()


async def test_a_cancelled_park_waits_for_its_thread(folder: Path) -> None:
    """What it has written by then is removed."""
    gate = Gate()
    store = await DiskStore.open(folder, sealer=gate)
    parking = await _held_up(store, gate, slow_state("t/a", [1] * 200))
    parking.cancel()
    await asyncio.sleep(0)
    assert not parking.done()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await parking
    assert files_in(folder) == [] and await keys_of(store) == []
    assert (await store.stat()).refused == {}
    await store.aclose()


async def test_the_owner_hears_whom_a_cancelled_park_displaced(folder: Path) -> None:
    """Nobody else will: the receipt is lost."""

    class Canceller:
        def __init__(self) -> None:
            self.lost_keys: list[str] = []

        def lost(self, key: str) -> None:
            self.lost_keys.append(key)

        def moved(self, key: str, tier: str) -> None:
            pass

        def worth_s(self, manifest: Manifest) -> float:
            parking.cancel()
            return 1.0

    store = await DiskStore.open(folder, budget_bytes=1 << 20)
    store.serve(owner := Canceller())
    await store.park(make_rows("t/a", [1], unstored_bytes=600_000))
    parking = asyncio.create_task(
        store.park(make_rows("t/b", [2], unstored_bytes=600_000))
    )
    with pytest.raises(asyncio.CancelledError):
        await parking
    assert await keys_of(store) == ["t/b"]
    assert owner.lost_keys == ["t/a"]
    await store.aclose()
