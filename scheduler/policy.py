"""What a retention policy is: it decides who gets in, and which state leaves.

A policy sees sessions and returns plain data; it keeps no clock and moves nothing.
Shipped ones are in ``policies/``, one file each.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .history import History
from .outlook import Outlook
from .session import Departure, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Let the state leave at ``at_s``, if the same wait still goes on by then."""

    departure: Departure
    at_s: float


class Victim(NamedTuple):
    """Who makes room, and how: None is whichever way costs less.

    ``demoted``: it has to wait for its turn to be active again. It has been sent away
    against its interest, and queues behind those that are active: or it would come
    straight back and send away somebody else.
    """

    session: Session
    departure: Departure | None
    demoted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What the scheduler has to know of a policy besides its answers.

    ``departure``: how state leaves; None is whichever way costs less, by what was
    measured. ``ripens``: who is kept out may get in by the passing of time alone, so it
    is looked at again; all else waits for events. ``reserves_growth``: who is not
    resident has to leave room for the next turns of those that are. ``ahead``: the
    probability that its turn comes in time from which on a parked state is restored
    before it does; None never does so. For replays only: ``clairvoyant`` is told how
    long tools will take, and ``unlimited`` is given memory without end.
    """

    departure: Departure | None
    ripens: bool = False
    reserves_growth: bool = False
    ahead: float | None = None
    clairvoyant: bool = False
    unlimited: bool = False


class View(Protocol):
    """What a policy may look at. Read only."""

    @property
    def outlook(self) -> Outlook:
        """What waits, moves and prefills are expected to take."""
        ...

    @property
    def history(self) -> History:
        """What happened last, for rules that are computed from samples."""
        ...

    @property
    def waiting(self) -> Iterable[Session]:
        """Resident sessions that wait for a tool or a user, longest wait first."""
        ...

    def foremost(self, most: int, *, dirty: bool = False) -> Iterable[Session]:
        """Of each kind of wait the *most* that wait longest; *dirty*: not copied."""
        ...

    @property
    def kv_tokens(self) -> int:
        """KV tokens that the accelerator holds."""
        ...

    @property
    def free_tokens(self) -> int:
        """KV tokens that nobody has reserved."""
        ...

    @property
    def growth_tokens(self) -> int:
        """What the resident sessions are going to need for their next turns."""
        ...

    @property
    def retry_s(self) -> float:
        """How long an answer of "nobody" holds, unless something happens."""
        ...

    @property
    def backlog_s(self) -> float:
        """How long the link has to work for what is wanted of it already."""
        ...


class Policy(Protocol):
    """Decides about state that is resident while its session waits."""

    @property
    def name(self) -> str:
        """As the user writes it, parameters included."""
        ...

    @property
    def traits(self) -> Traits:
        """How the scheduler has to treat it."""
        ...

    def on_wait(self, session: Session, view: View, now_s: float) -> Retention | None:
        """Decide when a tool wait begins; None keeps the state."""
        ...

    def victims(self, view: View, now_s: float, *, forced: bool) -> Iterator[Victim]:
        """Yield waiting sessions in the order in which they should make room.

        Where that is *forced*, a turn has waited too long or nothing goes on any more:
        then everybody has to be named in the end.
        """
        ...

    def admits(
        self, session: Session, lack_tokens: int, view: View, now_s: float
    ) -> bool:
        """Decide whether a session that is not active may become so now.

        It lacks *lack_tokens* of memory, which others would have to give up; zero or
        less is free.
        """
        ...

    def copy_behind(self, view: View, now_s: float) -> Session | None:
        """Choose whose state to copy now that the link has nothing to do, if any's."""
        ...
