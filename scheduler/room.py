"""Whom to let go so that a turn fits.

>>> from .events import SessionId
>>> from .session import Departure, Session
>>> ledger = Ledger(slots=2, kv_tokens=100)
>>> waiting = [Session(id=SessionId(name)) for name in "ab"]
>>> for session in waiting:
...     _ = ledger.open(session.id, 40)
>>> lack = Lack(tokens=30, slots=0)
>>> victims = (Victim(session, Departure.DROP) for session in waiting)
>>> [victim.session.id for victim in choose_victims(victims, lack, ledger)]
['a']
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .ledger import Ledger
from .policy import Victim


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What a turn lacks; zero or less is enough."""

    tokens: int
    slots: int


def choose_victims(
    candidates: Iterable[Victim], lack: Lack, ledger: Ledger
) -> list[Victim]:
    """Return as many *candidates*, in their order, as make up for *lack*.

    They are collected before any of them goes: letting one go changes what the
    candidates are drawn from.
    """
    tokens, slots = lack.tokens, lack.slots
    victims: list[Victim] = []
    for candidate in candidates:
        if tokens <= 0 and slots <= 0:
            break
        victims.append(candidate)
        tokens -= ledger.held_tokens(candidate.session.id)
        slots -= 1
    return victims
