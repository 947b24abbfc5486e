"""``continuum``: state is pinned for a time that its tool's history says is worth it.

The rule of Continuum (arXiv 2511.02230). While a call of tool f runs, the state of its
session is pinned for the best of the durations that were seen of f:

    tau = argmax P_f(tau) (T eta + reload) - tau

P_f is the share of f's calls that had ended by tau. T is the mean time in the queue of
the last 100 turns, which a session that finds its state pinned does not have; eta says
how well a session's past turns tell its remaining ones, as the negative of their
correlation; reload is what it costs to have the state back. P_f needs 100 calls, else
it is that of all tools; before there are 100 of those tau is 2 seconds. The code that
was released with the paper is simpler (``continuum:released``): 2 seconds if the calls
of f took at most that in the mean, or none was seen, else nothing. Under pressure the
session that arrived last is unpinned first.

In our terms: reload is the measured prefill, or restore with ``:tier``, where the paper
has a quadratic profile; f is a tool and its class, that is the command where the tool
is a shell; of parallel calls the first one counts. There is pressure when a turn has
waited too long or nothing goes on any more. Pinned sessions come first because resident
turns do; behind them comes the queue's own order, not that of first arrival.
"""

from collections.abc import Collection

from ..history import History
from ..policy import Retention, View
from ..session import Session
from .pins import Pinning

_SAMPLES = 100
_COLD_S = 2.0


class Continuum(Pinning):
    """Pin by the history of the tool, in the paper's way or the *released* one."""

    def __init__(self, *, released: bool = False, tier: bool = False) -> None:
        super().__init__(tier=tier)
        self._released = released

    @property
    def name(self) -> str:
        """``continuum``, with ``:released`` and ``:tier`` where so."""
        released = ":released" if self._released else ""
        return f"continuum{released}{':tier' if self._tier else ''}"

    def on_wait(self, session: Session, view: View, now_s: float) -> Retention | None:
        """Pin the state; it leaves only if needed."""
        call = next(iter(session.open_calls.values()))
        seen_s = view.history.tool_calls_s(call.tool, call.tool_class)
        if self._released:
            pin_s = released_pin_s(seen_s)
        else:
            reload_s = self.lost_s(session.held_tokens, view.outlook)
            pin_s = paper_pin_s(seen_s, view.history, reload_s=reload_s)
        self._pins.pin(session, pin_s, now_s=now_s)
        return None

    def _unpinned(self, pinned: list[Session], view: View) -> list[Session]:
        """Return the *pinned*, the latest arrived first."""
        return sorted(pinned, key=view.history.arrival, reverse=True)


def released_pin_s(seen_s: Collection[float]) -> float:
    """Return the released code's pin for a tool whose calls took *seen_s*."""
    if seen_s and sum(seen_s) / len(seen_s) > _COLD_S:
        return 0.0
    return _COLD_S


def paper_pin_s(
    seen_s: Collection[float], history: History, *, reload_s: float
) -> float:
    """Return the paper's pin for a tool whose calls took *seen_s*."""
    if len(seen_s) < _SAMPLES:
        seen_s = history.calls_s
    if len(seen_s) < _SAMPLES:
        return _COLD_S
    queues_s = history.queues_s
    queue_s = sum(queues_s) / len(queues_s) if queues_s else 0.0
    return best_pin_s(seen_s, gain_s=queue_s * history.memoryfulness + reload_s)


def best_pin_s(seen_s: Collection[float], *, gain_s: float) -> float:
    """Return for which of the durations *seen_s* to pin, for a gain of *gain_s*.

    >>> best_pin_s([0.1, 0.2, 9.0], gain_s=4.0)
    0.2
    >>> best_pin_s([5.0, 9.0], gain_s=4.0)
    0.0
    """
    best_s, best = 0.0, 0.0
    for ended, pin_s in enumerate(sorted(seen_s), start=1):
        value_s = ended / len(seen_s) * gain_s - pin_s
        if value_s > best:
            best_s, best = pin_s, value_s
    return best_s
