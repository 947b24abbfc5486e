"""What is installed is what lies on disk."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("backends", "runtime", "scheduler", "state_store")

pytestmark = pytest.mark.skipif(
    not (ROOT / "scheduler").is_dir(), reason="only a source checkout can be built"
)


def test_the_wheel_holds_every_module(tmp_path: Path) -> None:
    """The wheel's modules are the files on disk: no more, no fewer."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--outdir",
            str(tmp_path),
            str(ROOT),
        ],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packed = {name for name in names if not name.startswith("kvalet-")}
    on_disk = {"kvalet/py.typed"}
    on_disk |= {f"kvalet/{path.name}" for path in (ROOT / "kvalet").glob("*.py")}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            on_disk.add(f"kvalet/{path.relative_to(ROOT).as_posix()}")
    assert packed == on_disk


def test_the_links_are_the_folders() -> None:
    """kvalet/scheduler is scheduler/, and so for the other three."""
    for folder in FOLDERS:
        assert (ROOT / "kvalet" / folder).resolve() == (ROOT / folder).resolve()


@pytest.mark.parametrize("module", ["kvalet", "kvalet.scheduler", "kvalet.backends"])
def test_importing_needs_no_extra(module: str) -> None:
    """The face imports without the engine, and starts nothing."""
    program = (
        "import sys\n"
        "sys.modules['xllamacpp'] = sys.modules['platformdirs'] = None\n"
        f"import {module}, threading\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
