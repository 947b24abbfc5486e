"""The cost file: whole or not at all, of one backend, and refused in one sentence."""

from pathlib import Path

import msgspec
import pytest

from kvalet.runtime.costs import costs_path, load_costs, save_costs
from kvalet.runtime.errors import WrongInput
from kvalet.scheduler.cost import CostModel


def some_costs() -> CostModel:
    """Return a model that has seen one of everything."""
    costs = CostModel()
    costs.observe_prefill(100, 0, 1.0)
    costs.observe_decode_step(1, 100, 0.02)
    costs.observe_save(1_000_000, 0.01, "host")
    costs.observe_restore(1_000_000, 0.02, "host")
    return costs


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """The same costs, in a folder that was not there, and nothing else in it."""
    path, costs = tmp_path / "new" / "costs.json", some_costs()
    save_costs(path, costs, backend="llama A")
    assert load_costs(path, backend="llama A").record() == costs.record()
    assert msgspec.json.decode(path.read_bytes())["schema"] == "kvalet.costs/1"
    assert list(path.parent.iterdir()) == [path]


def test_another_backends_costs_are_refused(tmp_path: Path) -> None:
    """The sentence names both backends and the file."""
    path = tmp_path / "costs.json"
    save_costs(path, some_costs(), backend="llama A")
    with pytest.raises(WrongInput) as caught:
        load_costs(path, backend="llama B")
    assert str(caught.value) == (
        f"the cost file {path} is of the backend 'llama A', not of 'llama B'"
    )


def test_another_schema_is_refused(tmp_path: Path) -> None:
    """A file of another version says which, whatever else is in it."""
    path = tmp_path / "costs.json"
    path.write_text('{"schema": "kvalet.costs/9", "backend": "llama A"}')
    with pytest.raises(WrongInput, match=r"kvalet\.costs/9.*kvalet\.costs/1"):
        load_costs(path, backend="llama A")


@pytest.mark.parametrize("missing", ["absent.json", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, missing: str) -> None:
    """Not there, or a folder: one sentence."""
    with pytest.raises(WrongInput, match="can't be read"):
        load_costs(tmp_path / missing, backend="llama A")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"{", b""),
        (b'"spread": ', b'"spread": -'),
        (b'"moments"', b'"moment"'),
        (b'"weight": ', b'"weight": 1e999, "w": '),
        (b'"llama A"', b'"\xff"'),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    """Whatever was changed in it, one sentence says that it can't be used."""
    path = tmp_path / "costs.json"
    save_costs(path, some_costs(), backend="llama A")
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(WrongInput, match="is no cost file that can be used"):
        load_costs(path, backend="llama A")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """Below a file there are no folders: one sentence, and nothing left behind."""
    (tmp_path / "file").touch()
    with pytest.raises(WrongInput, match="can't be written"):
        save_costs(tmp_path / "file" / "costs.json", some_costs(), backend="llama A")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_each_backend_has_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the cache folder, under a name that tells, apart even if they begin alike."""
    monkeypatch.setenv("KVALET_CACHE_DIR", str(tmp_path))
    paths = {costs_path(f"llama ../x {'y' * 80} {n}") for n in range(3)}
    assert len(paths) == 3
    assert {path.parent for path in paths} == {tmp_path / "costs"}
    assert all(path.name.startswith("llama-..-x-yyy") for path in paths)
