"""The folder for slot files: in memory where possible, private, and gone afterwards."""

import stat
import subprocess
import sys
from pathlib import Path

from kvalet.backends.llama.scratch import Scratch


def test_memory_is_taken_where_it_suffices(tmp_path: Path) -> None:
    """A folder with enough free space is used, and there is nothing to say."""
    scratch = Scratch.create(1, memory_folders=[tmp_path])
    assert scratch.in_memory and scratch.note == ""
    assert scratch.folder.parent == tmp_path
    scratch.remove()


def test_too_little_memory_means_disk_and_a_note(tmp_path: Path) -> None:
    """Where a full slot does not fit, the user is told that disks are involved."""
    scratch = Scratch.create(1 << 60, memory_folders=[tmp_path])
    assert not scratch.in_memory
    assert "not through memory" in scratch.note
    assert list(tmp_path.iterdir()) == []
    scratch.remove()


def test_no_tmpfs_means_disk(tmp_path: Path) -> None:
    """A folder that does not exist is passed over."""
    scratch = Scratch.create(1, memory_folders=[tmp_path / "absent"])
    assert not scratch.in_memory
    scratch.remove()


def test_the_folder_is_private(tmp_path: Path) -> None:
    """Conversations lie in it: nobody else may look, no name can be guessed."""
    first = Scratch.create(1, memory_folders=[tmp_path])
    second = Scratch.create(1, memory_folders=[tmp_path])
    assert stat.S_IMODE(first.folder.stat().st_mode) == 0o700
    assert first.folder != second.folder
    assert first.new_path() != first.new_path()
    first.remove()
    second.remove()


def test_removal_takes_everything(tmp_path: Path) -> None:
    """Files left in it go too, and removing twice is no error."""
    scratch = Scratch.create(1, memory_folders=[tmp_path])
    scratch.new_path().write_bytes(b"kv")
    scratch.remove()
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_killed_owners_left_is_removed(tmp_path: Path) -> None:
    """A folder whose owner was killed goes when the next one is made; others stay."""
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from kvalet.backends.llama.scratch import Scratch\n"
        "scratch = Scratch.create(1, memory_folders=[Path(sys.argv[1])])\n"
        "scratch.new_path().write_bytes(b'kv')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    living = Scratch.create(1, memory_folders=[tmp_path])
    assert list(tmp_path.iterdir()) == [living.folder]
    another = Scratch.create(1, memory_folders=[tmp_path])
    assert living.folder.exists()
    living.remove()
    another.remove()
