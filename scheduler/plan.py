"""A plan: what the scheduler has decided, as the events that it has entered already.

Whoever carries a plan out owes the scheduler exactly one answer for each entry:
PrefillDone, DecodeDone or TurnAborted for a start; Copied or CopyFailed for a copy;
Restored or RestoreFailed for a restore. Releases, rejections and forgotten copies are
final. Entries that name the same slot are carried out in the order of the fields here,
and those of an earlier plan before those of a later one.
"""

from dataclasses import dataclass

from .events import (
    CopyForgotten,
    CopyStarted,
    DecodeStarted,
    PrefillStarted,
    Released,
    RestoreStarted,
    TurnAdmitted,
    TurnRejected,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision; ``wake_at_s`` is when to ask again if nothing happens before."""

    reject: tuple[TurnRejected, ...] = ()
    release: tuple[Released, ...] = ()
    forget: tuple[CopyForgotten, ...] = ()
    copy: tuple[CopyStarted, ...] = ()
    admit: tuple[TurnAdmitted, ...] = ()
    restore: tuple[RestoreStarted, ...] = ()
    start: tuple[PrefillStarted | DecodeStarted, ...] = ()
    wake_at_s: float | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to carry out."""
        return not (
            self.reject
            or self.release
            or self.forget
            or self.copy
            or self.admit
            or self.restore
            or self.start
        )


class Draft:
    """A plan in the making: the same fields, as lists."""

    __slots__ = ("admit", "copy", "forget", "reject", "release", "restore", "start")

    def __init__(self) -> None:
        self.reject: list[TurnRejected] = []
        self.release: list[Released] = []
        self.forget: list[CopyForgotten] = []
        self.copy: list[CopyStarted] = []
        self.admit: list[TurnAdmitted] = []
        self.restore: list[RestoreStarted] = []
        self.start: list[PrefillStarted | DecodeStarted] = []

    def finish(self, wake_at_s: float | None) -> Plan:
        """Return the plan."""
        return Plan(
            reject=tuple(self.reject),
            release=tuple(self.release),
            forget=tuple(self.forget),
            copy=tuple(self.copy),
            admit=tuple(self.admit),
            restore=tuple(self.restore),
            start=tuple(self.start),
            wake_at_s=wake_at_s,
        )
