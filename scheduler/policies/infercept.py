"""``infercept``: keep, swap or discard, whichever wastes least memory for least time.

The rule of InferCept (ICML 2024), with the chunked recomputation of its released code.
Waste is memory times the time for which it is of no use, in token-seconds. With C the
tokens of the session:

    keep     t C              t: how much longer the call takes
    swap     (out + in) C     its memory is of no use while it moves
    discard  f C / 2 + f R    f: seconds to compute it again, chunk by chunk, while it
                              grows to C and the R tokens of those that run stand by

How much longer a call takes is not known: it is taken to go on for as long as it has,
so that keeping comes to waste more and more. State leaves when that has overtaken the
smaller of the others, in the way that is the smaller. Where memory is needed before,
those leave first of whom it saves most.

In our terms: f, out and in are measured, not fitted per model; a swap waits for what is
on the link already, and runs beside the accelerator's work, so nobody stands by for it,
in place of a budget of swaps per iteration that the work would hide. The choice is made
when the call begins, for the time at which it falls due, and again when memory is
needed.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..policy import Retention, Traits, Victim, View
from ..session import Departure, Session
from .keep import Keep


class _Way(NamedTuple):
    """A way to leave, and the token-seconds that it wastes."""

    departure: Departure
    waste: float


class InferCept(Keep):
    """Let state go when keeping it has wasted more than letting it go would."""

    traits = Traits(departure=Departure.PARK)

    @property
    def name(self) -> str:
        """``infercept``."""
        return "infercept"

    def on_wait(self, session: Session, view: View, now_s: float) -> Retention | None:
        """Let the state go at the time when keeping it will have wasted as much."""
        if not session.held_tokens:
            return None
        others = [other for other in view.waiting if other is not session]
        way = _least_waste(session, view, _running_tokens([session, *others], view))
        kept_s = way.waste / session.held_tokens
        return Retention(departure=way.departure, at_s=now_s + kept_s)

    def victims(self, view: View, now_s: float, *, forced: bool) -> Iterator[Victim]:
        """Yield those who wait, by how much less waste it is to let them go."""
        running_tokens = _running_tokens(view.waiting, view)
        saved: list[tuple[float, Victim]] = []
        for session in view.waiting:
            way = _least_waste(session, view, running_tokens)
            kept = (now_s - session.waits_since_s) * session.held_tokens
            saved.append((kept - way.waste, Victim(session, way.departure)))
        saved.sort(key=lambda each: -each[0])
        for _, victim in saved:
            yield victim


def _running_tokens(waiting: Iterable[Session], view: View) -> int:
    used_tokens = view.kv_tokens - view.free_tokens
    return max(0, used_tokens - sum(session.held_tokens for session in waiting))


def _least_waste(session: Session, view: View, running_tokens: int) -> _Way:
    """Return whether swapping or discarding its state wastes less, and how much."""
    outlook, held_tokens = view.outlook, session.held_tokens
    out_s = view.backlog_s + outlook.save_s(session.dirty_tokens)
    moved_s = out_s + outlook.restore_s(held_tokens)
    anew_s = outlook.prefill_s(held_tokens)
    swap = moved_s * held_tokens
    discard = anew_s * (held_tokens / 2 + running_tokens)
    if swap <= discard:
        return _Way(Departure.PARK, swap)
    return _Way(Departure.DROP, discard)
