"""The folder can be imported without what only an engine needs."""

import subprocess
import sys

import pytest

from kvalet.backends import ModelUnavailable
from kvalet.backends.llama import cache_folder

SCRIPT = """
import sys
for name in ("xllamacpp", "platformdirs", "numpy"):
    sys.modules[name] = None
import kvalet.backends.llama
"""


def test_no_optional_dependency_is_imported() -> None:
    """Importing works without xllamacpp, platformdirs and numpy."""
    subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], check=True)


def test_a_missing_extra_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where platformdirs is missing, the command that installs it is named."""
    monkeypatch.delenv("KVALET_CACHE_DIR", raising=False)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(ModelUnavailable, match=r"pip install 'kvalet\[local\]'"):
        cache_folder()
