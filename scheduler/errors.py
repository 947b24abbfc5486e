"""What the scheduler raises.

SchedulerError
+ IllegalMove       the event cannot happen in the session's present state
+ UnknownSession    the event names a session that is not open
+ LedgerError       an entry would overdraw the books: a defect, never load
+ InvalidSetting    a policy or capacity that makes no sense
"""


class SchedulerError(Exception):
    """Root of everything that the scheduler raises."""


class IllegalMove(SchedulerError):
    """The event cannot happen in the session's present state."""


class UnknownSession(SchedulerError):
    """The event names a session that is not open."""


class LedgerError(SchedulerError):
    """An entry would overdraw the ledger."""


class InvalidSetting(SchedulerError):
    """A policy, parameter or capacity that makes no sense."""
