"""Who waits, by what for and since when; and whose state the store lacks."""

from hypothesis import given
from hypothesis import strategies as st

from kvalet.scheduler import Capacity, CopyLost, Session, SessionId
from kvalet.scheduler.books import Books
from kvalet.scheduler.waits import Waits

from .life import Life


def life_of(name: str, tool_class: str | None = None) -> Life:
    """Return one who is in a tool of that class; None: who waits for its user."""
    life = Life(name=name)
    if tool_class is not None:
        life.tool(tool_class=tool_class)
    return life


def session_of(name: str, tool_class: str | None = None) -> Session:
    return life_of(name, tool_class).session


def waits_of(*lives: Life) -> Waits:
    waits = Waits()
    for life in lives:
        waits.add(life.session)
    return waits


def names(waits: Waits, most: int | None = None) -> str:
    """Return all, or the foremost *most*, in their order."""
    chosen = waits.longest_first if most is None else waits.foremost(most)
    return "".join(session.id for session in chosen)


def test_the_longest_wait_stands_first() -> None:
    """The order is that in which they came to wait, whatever they wait for."""
    waits = waits_of(life_of("c", "test"), life_of("a"), life_of("b", "test"))
    assert names(waits) == "cab"
    assert len(waits) == 3


def test_the_foremost_are_those_of_each_kind() -> None:
    """However many wait for one kind of tool, others are named as well."""
    waits = waits_of(
        *(life_of(name, "test") for name in "abc"),
        life_of("d"),
        *(life_of(name, "build") for name in "ef"),
    )
    assert names(waits, 1) == "ade"
    assert names(waits, 2) == "abdef"
    assert names(waits, 9) == "abcdef"


def test_being_told_again_changes_nothing() -> None:
    """A session that waits already keeps its place in both orders."""
    a, b = life_of("a", "test"), life_of("b", "test")
    waits = waits_of(a, b, a)
    assert (names(waits), names(waits, 2)) == ("ab", "ab")


def test_whoever_changes_tools_joins_the_other_kind_as_its_last() -> None:
    """Its whole wait goes on, but for what it waits for now it has only begun to."""
    a, b = life_of("a", "test"), life_of("b", "build")
    waits = waits_of(a, b)
    a.end_tool()
    a.tool("c2", tool_class="build")
    waits.add(a.session)
    assert names(waits) == "ab"
    assert names(waits, 1) == "b"
    assert names(waits, 2) == "ba"


def test_a_tool_that_ended_leaves_a_wait_for_the_user() -> None:
    """Without an open call the kind is the user's, and nothing is left of the other."""
    a, b = life_of("a", "test"), life_of("b")
    waits = waits_of(a, b)
    a.end_tool()
    waits.add(a.session)
    assert names(waits, 1) == "b"
    assert names(waits, 2) == "ba"


def test_the_oldest_of_several_calls_is_the_kind() -> None:
    """A second call of another class moves nobody."""
    a, b = life_of("a", "test"), life_of("b", "test")
    waits = waits_of(a, b)
    a.tool("c2", tool_class="build")
    waits.add(a.session)
    assert names(waits, 1) == "a"


def test_whoever_waits_no_more_is_gone() -> None:
    """It is in neither order, may be taken out twice, and comes back as the last."""
    a, b = life_of("a", "test"), life_of("b", "test")
    waits = waits_of(a, b)
    waits.discard(a.session.id)
    waits.discard(a.session.id)
    assert a.session.id not in waits
    assert (names(waits), names(waits, 2), len(waits)) == ("b", "b", 1)
    waits.add(a.session)
    assert (names(waits), names(waits, 2)) == ("ba", "ba")


@given(
    acts=st.lists(
        st.tuples(st.sampled_from("abcde"), st.sampled_from(["x", "y", "user", "go"])),
        max_size=40,
    ),
    most=st.integers(1, 5),
)
def test_both_orders_agree(acts: list[tuple[str, str]], most: int) -> None:
    """Each who waits stands once in each order; of a kind there are *most* at most."""
    waits = Waits()
    known: dict[str, str] = {}
    for name, act in acts:
        if act == "go":
            waits.discard(SessionId(name))
            known.pop(name, None)
        else:
            waits.add(session_of(name, None if act == "user" else act))
            known[name] = act
    assert sorted(names(waits)) == sorted(known)
    assert sorted(names(waits, len(known) + 1)) == sorted(known)
    kinds = [known[name] for name in names(waits, most)]
    for kind in set(known.values()):
        assert kinds.count(kind) == min(most, list(known.values()).count(kind))


def test_dirty_ones_are_those_whom_the_store_lacks() -> None:
    """A copy takes a session from them, its loss puts it back; it waits all along."""
    books = Books(
        capacity=Capacity(slots=1, kv_tokens=100, context_tokens=100), age_bound_s=60
    )
    life = Life()
    life.submit(20)
    life.admit(books.ledger.open(life.session.id, 20))
    life.prefill()
    life.decode()
    books.settle(life.session)
    assert names(books.waits) == names(books.dirty_waits) == "a"

    life.copy()
    books.settle(life.session)
    assert (names(books.waits), names(books.dirty_waits)) == ("a", "")

    life.happen(CopyLost(at_s=2, session=life.session.id))
    books.begin_wait(life.session)
    assert names(books.waits) == names(books.dirty_waits) == "a"

    books.end_wait(life.session)
    assert names(books.waits) == names(books.dirty_waits) == ""
