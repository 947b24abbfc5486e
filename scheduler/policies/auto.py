"""``auto``: nothing moves unless somebody needs the memory, and then by price.

Three controls, after the measured study in which they mattered:

* *Who is active.* A session whose state is not resident gets in if it fits beside the
  others and their growth, or if those who would have to leave lose nothing by it. With
  a fast link that is nearly everybody who waits, so memory is oversubscribed; with a
  slow one hardly anybody, so what fits is let in. No number is set. Who has left and
  is dear to bring back comes back by the same gate, in line with those who are new.
* *Who leaves.* A waiting session loses nothing if it is expected to wait longer than
  moving it takes now: the copy of what is dirty, the way back (restore or re-prefill,
  whichever costs all less) and the line of the link. In order of remaining wait ÷ cost.
* *When state is copied.* While the link has nothing to do and memory is getting short,
  in the same order: then memory is free the moment it is wanted.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..policy import Retention, Traits, Victim, View
from ..session import Residency, Session
from .keep import Keep

# Copying behind begins when so much of the memory is reserved.
_SHORT_OF_MEMORY = 0.8

# What follows an answer or a tool mostly follows at once.
_GRACE_S = 0.05

# Of each kind of wait, so many that have lasted longest are priced.
_LOOKED_AT = 4


class _Priced(NamedTuple):
    """A waiting session, and what it is worth to send it away."""

    remaining_s: float
    cost_s: float
    session: Session

    def ratio(self) -> float:
        return self.remaining_s / max(self.cost_s, 1e-9)


class Auto(Keep):
    """Keep, park or drop, whichever the measured costs say; the default."""

    traits = Traits(departure=None, ripens=True, reserves_growth=True, ahead=0.5)

    @property
    def name(self) -> str:
        """``auto``."""
        return "auto"

    def on_wait(self, session: Session, view: View, now_s: float) -> Retention | None:
        """Wait until somebody needs the memory."""
        return None

    def victims(self, view: View, now_s: float, *, forced: bool) -> Iterator[Victim]:
        """Yield those who lose nothing; where it is forced, then the others.

        Who is dear to bring back comes back by the gate, behind those who came before:
        or each return would cost the others more than a turn.
        """
        backlog_s = view.backlog_s
        turns_per_s = view.outlook.pace.turns_per_s
        reluctant: list[Session] = []
        for priced in _by_price(view.foremost(_LOOKED_AT), view, now_s):
            session = priced.session
            thinks = not session.open_calls and now_s - session.idle_since_s < _GRACE_S
            if not thinks and priced.remaining_s > priced.cost_s + backlog_s:
                dear = priced.cost_s * turns_per_s > 1
                yield Victim(session, None, demoted=dear)
            else:
                reluctant.append(session)
        if forced:
            for session in reluctant:
                yield Victim(session, None, demoted=True)

    def admits(
        self, session: Session, lack_tokens: int, view: View, now_s: float
    ) -> bool:
        """Let it in if it fits, or if willing victims make it fit."""
        for victim in self.victims(view, now_s, forced=False):
            if lack_tokens <= 0:
                break
            lack_tokens -= victim.session.held_tokens
        return lack_tokens <= 0

    def copy_behind(self, view: View, now_s: float) -> Session | None:
        """Copy who would leave first."""
        if view.free_tokens > (1 - _SHORT_OF_MEMORY) * view.kv_tokens:
            return None
        for priced in _by_price(view.foremost(2, dirty=True), view, now_s):
            if priced.session.residency is Residency.RESIDENT:
                return priced.session
        return None


def _by_price(sessions: Iterable[Session], view: View, now_s: float) -> list[_Priced]:
    outlook = view.outlook
    priced = [
        _Priced(outlook.remaining_s(session, now_s), outlook.moved_s(session), session)
        for session in sessions
        if session.departure is None
    ]
    priced.sort(key=_Priced.ratio, reverse=True)
    return priced
