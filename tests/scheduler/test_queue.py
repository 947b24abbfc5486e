"""The order of admission: by rank, then by age, and by age alone past the bound."""

from hypothesis import given
from hypothesis import strategies as st

from kvalet.scheduler import AdmissionQueue, Head, Rank, SessionId


def names(*letters: str) -> list[SessionId]:
    return [SessionId(letter) for letter in letters]


def drain(queue: AdmissionQueue, now_s: float) -> list[SessionId]:
    order: list[SessionId] = []
    while (head := queue.head(now_s)) is not None:
        order.append(head.session)
        queue.remove(head.session)
    return order


def test_resident_then_returning_then_new() -> None:
    """Rank decides, and within a rank the order of submission."""
    queue = AdmissionQueue(age_bound_s=60)
    a, b, c, d = names("a", "b", "c", "d")
    queue.push(a, Rank.NEW, 0)
    queue.push(b, Rank.RETURNING, 1)
    queue.push(c, Rank.RESIDENT, 2)
    queue.push(d, Rank.NEW, 3)
    assert [c, b, a, d] == drain(queue, 4)


def test_age_goes_before_rank() -> None:
    """A turn past the age bound is the head, and is called forced."""
    queue = AdmissionQueue(age_bound_s=10)
    a, b = names("a", "b")
    queue.push(a, Rank.NEW, 0)
    queue.push(b, Rank.RESIDENT, 5)
    assert queue.next_aged_s() == 10
    assert queue.head(9.9) == Head(b, False)
    assert queue.head(10) == Head(a, True)


def test_whom_rank_puts_first_is_never_forced() -> None:
    """Age forces nothing where the oldest turn would be next anyway."""
    queue = AdmissionQueue(age_bound_s=10)
    (a,) = names("a")
    queue.push(a, Rank.NEW, 0)
    assert queue.head(1000) == Head(a, False)


def test_a_new_rank_keeps_the_age() -> None:
    """Ranks may change both ways while a turn waits; it stays in its place in line."""
    queue = AdmissionQueue(age_bound_s=60)
    a, b, c = names("a", "b", "c")
    for number, session in enumerate((a, b, c)):
        queue.push(session, Rank.NEW, number)
    queue.rerank(b, Rank.RESIDENT)
    queue.rerank(a, Rank.RESIDENT)
    queue.rerank(b, Rank.NEW)
    queue.rerank(b, Rank.RESIDENT)
    assert [c, b, a] == list(queue.youngest_first())
    assert [a, b, c] == drain(queue, 0)


def test_a_session_may_come_again() -> None:
    """What is left of an earlier turn never surfaces as the later one."""
    queue = AdmissionQueue(age_bound_s=60)
    a, b = names("a", "b")
    queue.push(a, Rank.RESIDENT, 0)
    queue.remove(a)
    queue.push(b, Rank.RETURNING, 1)
    queue.push(a, Rank.NEW, 2)
    assert [b, a] == drain(queue, 3)


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from(list(Rank)), st.booleans()),
        max_size=40,
    )
)
def test_it_is_a_sort(steps: list[tuple[int, Rank, bool]]) -> None:
    """Whatever came and went, draining sorts by rank and number of submission."""
    queue = AdmissionQueue(age_bound_s=1e9)
    waiting: dict[SessionId, tuple[int, int]] = {}
    urgency = {Rank.RESIDENT: 0, Rank.RETURNING: 1, Rank.NEW: 2}
    for number, (name, rank, leaves) in enumerate(steps):
        session = SessionId(str(name))
        if session not in waiting:
            queue.push(session, rank, number)
            waiting[session] = (urgency[rank], number)
        elif leaves:
            queue.remove(session)
            del waiting[session]
        else:
            queue.rerank(session, rank)
            waiting[session] = (urgency[rank], waiting[session][1])
    assert len(queue) == len(waiting)
    assert drain(queue, 0) == sorted(waiting, key=lambda session: waiting[session])
