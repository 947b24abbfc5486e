"""The books against books that are made anew for every question."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.state_store import Manifest, Segment, StateMissing, StoreFull, tenant_of
from kvalet.state_store.shelf import Place, Shelf, places_of

KEYS = ["t/a", "t/b", "t/c", "u/a", "u/b"]
SIZES = {"one": 1, "two": 2, "four": 4, "five": 5}


def make_manifest(key: str, contents: str, unstored_bytes: int = 0) -> Manifest:
    """Return a state with a segment for each of the *contents*."""
    segments = tuple(
        Segment(
            first_token=number,
            token_count=1,
            token_hash="",
            length_bytes=SIZES[content],
            checksum=content,
        )
        for number, content in enumerate(contents.split())
    )
    manifest = Manifest(
        key=key, model="m", engine="e", layout="l", kv_bytes=0, segments=segments
    )
    nbytes = manifest.length_bytes + unstored_bytes
    return Manifest(
        key=key, model="m", engine="e", layout="l", kv_bytes=nbytes, segments=segments
    )


class Worths:
    """An owner with a table of worths."""

    def __init__(self, worths_s: dict[str, float]) -> None:
        self.worths_s = worths_s

    def lost(self, key: str) -> None:
        raise AssertionError(f"{key!r} was displaced by a call, which says so itself")

    def moved(self, key: str, tier: str) -> None:
        raise AssertionError(f"{key!r} is in one tier, and stays there")

    def worth_s(self, manifest: Manifest) -> float:
        return self.worths_s.get(manifest.key, 0.0)


class PlainShelf:
    """The same rules, told in the plainest way."""

    def __init__(
        self, budget_bytes: int, tenant_bytes: int, worths_s: dict[str, float] | None
    ) -> None:
        self.budget_bytes, self.tenant_bytes = budget_bytes, tenant_bytes
        self.worths_s = worths_s
        self.manifests: dict[str, Manifest] = {}

    def bytes_of(self, *, but: str | None = None) -> int:
        return self._take([m for key, m in self.manifests.items() if key != but])

    def bytes_of_tenant(self, tenant: str) -> int:
        return self._take(
            [m for key, m in self.manifests.items() if tenant_of(key) == tenant]
        )

    def places(self) -> set[Place]:
        return {place for m in self.manifests.values() for place in places_of(m)}

    def add(self, manifest: Manifest) -> list[str]:
        key, tenant = manifest.key, tenant_of(manifest.key)
        if self._take([manifest]) > min(self.budget_bytes, self.tenant_bytes):
            raise StoreFull
        self.manifests.pop(key, None)
        self.manifests[key] = manifest

        evicted: list[str] = []
        while self.bytes_of_tenant(tenant) > self.tenant_bytes:
            others = [other for other in self.manifests if tenant_of(other) == tenant]
            evicted.append(self._evict(key, others))
        while self.bytes_of() > self.budget_bytes:
            evicted.append(self._evict(key, list(self.manifests)))
        return evicted

    def _evict(self, newcomer: str, others: list[str]) -> str:
        others.remove(newcomer)
        if self.worths_s is None:
            victim = others[0]
        else:
            victim = min(others, key=self._worth_per_byte)
        del self.manifests[victim]
        return victim

    def _worth_per_byte(self, key: str) -> float:
        worth_s = (self.worths_s or {}).get(key, 0.0)
        freed = self.bytes_of() - self.bytes_of(but=key)
        if not worth_s:
            return 0.0
        return worth_s / freed if freed else float("inf")

    @staticmethod
    def _take(manifests: list[Manifest]) -> int:
        stored = {
            place: segment.length_bytes
            for m in manifests
            for place, segment in zip(places_of(m), m.segments, strict=True)
        }
        return sum(stored.values()) + sum(
            m.kv_bytes - m.length_bytes for m in manifests
        )


contents = st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=4).map(
    " ".join
)
manifests = st.builds(
    make_manifest, st.sampled_from(KEYS), contents, st.sampled_from([0, 0, 1, 3])
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), manifests),
        st.tuples(st.just("use"), manifests),
        st.tuples(st.just("remove"), manifests),
    ),
    max_size=30,
)
worths = st.one_of(
    st.none(), st.dictionaries(st.sampled_from(KEYS), st.sampled_from([0.0, 1.0, 2.5]))
)


@given(steps, st.integers(8, 24), st.integers(6, 20), worths)
def test_the_books_are_those_of_the_plain_rules(
    steps: list[tuple[str, Manifest]],
    budget_bytes: int,
    tenant_bytes: int,
    worths_s: dict[str, float] | None,
) -> None:
    """Who is there, in which order, what it takes, who had to leave, what is free."""
    shelf = Shelf(budget_bytes, tenant_bytes)
    plain = PlainShelf(budget_bytes, tenant_bytes, worths_s)
    if worths_s is not None:
        shelf.owner = Worths(worths_s)
    for step, manifest in steps:
        key, before = manifest.key, plain.places()
        if step == "add":
            try:
                evicted = plain.add(manifest)
            except StoreFull:
                with pytest.raises(StoreFull):
                    shelf.add(manifest)
                continue
            change = shelf.add(manifest)
            assert list(change.evicted) == evicted
            assert set(change.new) == set(places_of(manifest)) - before
        elif step == "remove":
            plain.manifests.pop(key, None)
            change = shelf.remove(key)
            assert not change.new and not change.evicted
        elif key in plain.manifests:
            plain.manifests[key] = plain.manifests.pop(key)
            shelf.use(key)
            continue
        else:
            continue
        assert sorted(change.freed) == sorted(before - plain.places())
        assert list(shelf) == list(plain.manifests)
        assert shelf.stored_bytes == plain.bytes_of()
        assert all(place in shelf for place in plain.places())
        for tenant in "tu":
            assert shelf.tenant_bytes(tenant) == plain.bytes_of_tenant(tenant)


def test_what_frees_nothing_leaves_last() -> None:
    """Of states that are worth something, those go first whose going helps."""
    shelf = Shelf(budget_bytes=10)
    shelf.owner = Worths({"t/a": 1.0, "t/b": 1.0, "t/c": 1000.0})
    shelf.add(make_manifest("t/a", "five"))
    shelf.add(make_manifest("t/b", "five"))
    shelf.add(make_manifest("t/c", "four"))
    assert shelf.add(make_manifest("t/d", "two")).evicted == ("t/c",)


def test_where_nothing_helps_alone_several_leave() -> None:
    """States that only share leave together, the least recently used first."""
    shelf = Shelf(budget_bytes=6)
    shelf.owner = Worths({"t/a": 1.0, "t/b": 1.0})
    shelf.add(make_manifest("t/a", "five"))
    shelf.add(make_manifest("t/b", "five"))
    change = shelf.add(make_manifest("t/c", "two"))
    assert change.evicted == ("t/a", "t/b")
    assert change.freed == (("t", "five-5"),)


def test_a_segment_that_stays_is_not_freed_and_not_new() -> None:
    """What the old state of a key and the new one share is not touched."""
    shelf = Shelf()
    shelf.add(make_manifest("a", "one two"))
    change = shelf.add(make_manifest("a", "two four"))
    assert (change.new, change.freed) == ((("", "four-4"),), (("", "one-1"),))


def test_condemned_segments_take_their_states_along() -> None:
    """All that share them, and none of another tenant."""
    shelf = Shelf()
    for key in ("t/a", "t/b", "t/c", "u/a"):
        shelf.add(make_manifest(key, "one two" if key != "t/c" else "two"))
    change = shelf.condemn([("t", "one-1"), ("t", "unknown")])
    assert change.evicted == ("t/a", "t/b")
    assert change.freed == (("t", "one-1"),)
    assert list(shelf) == ["t/c", "u/a"]
    assert shelf.evictions == 0


def test_a_worth_is_asked_for_once_per_displacement() -> None:
    """However many have to leave."""
    asked: list[str] = []

    class Counting(Worths):
        def worth_s(self, manifest: Manifest) -> float:
            asked.append(manifest.key)
            return 1.0

    shelf = Shelf(budget_bytes=5)
    shelf.owner = Counting({})
    for tenant in "abcd":
        shelf.add(make_manifest(f"{tenant}/s", "one"))
    assert not asked
    assert len(shelf.add(make_manifest("e/s", "four")).evicted) == 3
    assert sorted(asked) == ["a/s", "b/s", "c/s", "d/s"]


def test_a_rest_is_whole_behind_its_beginning() -> None:
    """And nowhere else."""
    shelf = Shelf()
    rest = Manifest(
        key="a",
        model="m",
        engine="e",
        layout="l",
        kv_bytes=2,
        segments=(
            Segment(
                first_token=1,
                token_count=1,
                token_hash="h",
                length_bytes=2,
                checksum="two",
            ),
        ),
    )
    with pytest.raises(StateMissing, match="before token 1 of state 'a'"):
        shelf.whole(rest)
    shelf.add(base := make_manifest("a", "one"))
    whole = shelf.whole(rest)
    assert whole.segments == base.segments + rest.segments
    assert shelf.holds(base) and not shelf.holds(whole)
