"""In which tier a copy is, and what a move costs where that is not known."""

import pytest

from kvalet.scheduler import (
    CopyForgotten,
    CopyLost,
    CopyMoved,
    CostModel,
    LatencyModel,
    Outlook,
    RestoreFailed,
    Session,
    SessionId,
)
from kvalet.scheduler.events import CopyFound, Event, RestoreStarted

A = SessionId("a")


def parked() -> Session:
    """Return a session whose copy is known to be on disk."""
    session = Session(id=A)
    session.apply(CopyFound(at_s=0, session=A, kv_tokens=100))
    session.apply(CopyMoved(at_s=1, session=A, tier="disk"))
    assert session.tier == "disk"
    return session


@pytest.mark.parametrize(
    "end",
    [
        CopyLost(at_s=2, session=A),
        CopyForgotten(at_s=2, session=A),
        RestoreFailed(at_s=2, session=A, reason="gone"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_copy_that_is_gone_is_in_no_tier(end: Event) -> None:
    """Or the next one would be priced by where the last one was."""
    session = parked()
    if isinstance(end, RestoreFailed):
        session.apply(RestoreStarted(at_s=1, session=A, slot=0, kv_tokens=100))
    session.apply(end)
    assert session.tier is None


def test_a_move_of_unknown_size_is_not_free() -> None:
    """Until the first one has been seen, it costs half of computing the tokens."""
    outlook = Outlook(latency=LatencyModel(), cost=CostModel(), bytes_per_token=0)
    half_s = outlook.prefill_s(1000) / 2
    assert outlook.save_s(1000) == outlook.restore_s(1000) == half_s > 0
