"""What a retention policy is: it decides which state leaves, when, and how.

A policy sees sessions and returns plain data; it keeps no clock and moves nothing.
Shipped ones are in ``policies/``, one file each.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from .session import Departure, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Let the state leave at ``at_s``, if the same wait still goes on by then."""

    departure: Departure
    at_s: float


class View(Protocol):
    """What a policy may look at. Read only."""

    @property
    def waiting(self) -> Iterable[Session]:
        """Resident sessions that wait for a tool or a user, longest wait first."""
        ...

    @property
    def free_tokens(self) -> int:
        """KV tokens that nobody has reserved."""
        ...


class Policy(Protocol):
    """Decides about state that is resident while its session waits."""

    @property
    def name(self) -> str:
        """As the user writes it, parameters included."""
        ...

    @property
    def departure(self) -> Departure:
        """How state leaves when the memory is needed."""
        ...

    def on_wait(self, session: Session, now_s: float) -> Retention | None:
        """Decide when a tool wait begins; None keeps the state."""
        ...

    def victims(self, view: View, now_s: float) -> Iterator[Session]:
        """Yield waiting sessions in the order in which they should make room."""
        ...
