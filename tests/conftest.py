"""Fixtures that several folders of tests share."""

import os
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import settings

from kvalet.backends import ModelUnavailable
from kvalet.backends.llama import fetch_default_model

from .tiny_model import write_tiny_model

# At home every run looks at new examples; CI judges a change, so it repeats itself.
settings.register_profile("home", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file with random weights."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_model(path)
    return path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def default_model() -> Path:
    """The real default model: skips at home if it can't be had, fails in CI."""
    try:
        return await fetch_default_model()
    except ModelUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(
    scope="module",
    params=["tiny_gguf", pytest.param("default_model", marks=pytest.mark.model)],
)
def model_path(request: pytest.FixtureRequest) -> Path:
    """The tiny random model, then the real default one."""
    path: Path = request.getfixturevalue(request.param)
    return path
