"""The public face says what it has, and has what it says."""

import importlib
import types

import pytest

import kvalet

FOLDERS = ("kvalet", "kvalet.scheduler", "kvalet.state_store", "kvalet.backends")


@pytest.mark.parametrize("name", FOLDERS)
def test_all_is_sorted_and_true(name: str) -> None:
    """``__all__`` is in order, without repeats, and every name in it is there."""
    module = importlib.import_module(name)
    exported: list[str] = module.__all__
    capitals_first = sorted(
        exported, key=lambda n: (not n.isupper(), n[0].islower(), n)
    )
    assert exported == capitals_first
    assert len(set(exported)) == len(exported)
    assert not [n for n in exported if not hasattr(module, n)]


@pytest.mark.parametrize("name", FOLDERS)
def test_nothing_is_public_by_accident(name: str) -> None:
    """Whatever a face holds besides its modules is in ``__all__``."""
    module = importlib.import_module(name)
    public = {
        n
        for n, value in vars(module).items()
        if not n.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(module.__all__)


def test_every_public_name_is_documented() -> None:
    """No public class or function lacks a docstring."""
    assert not [
        name
        for name in kvalet.__all__
        if callable(getattr(kvalet, name)) and not getattr(kvalet, name).__doc__
    ]
