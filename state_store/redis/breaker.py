"""When to leave a server alone that does not do its work; sans-IO.

Closed, calls go through. It opens at once when nobody answers at the address, and after
``slow_in_a_row`` answers in a row that did not come in time. Open, every call fails
without being tried, until a probe of its own finds that the server works again; the
probes come at growing intervals.

    >>> breaker = Breaker()
    >>> breaker.failed(0.0, at_once=True)
    >>> breaker.is_open, breaker.wait_s(0.0)
    (True, 0.25)
    >>> breaker.probed(0.25, works=True)
    >>> breaker.is_open
    False
"""

from typing import Final

FIRST_WAIT_S: Final = 0.25
LONGEST_WAIT_S: Final = 10.0


class Breaker:
    """Counts failures; ``now_s`` is monotonic and the caller's."""

    def __init__(self, slow_in_a_row: int = 2) -> None:
        self._slow_in_a_row = slow_in_a_row
        self._slow = 0
        self._wait_s = FIRST_WAIT_S
        self._probe_at_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether calls should fail without being tried."""
        return self._probe_at_s is not None

    def worked(self) -> None:
        """Take note that a call did its work; says nothing while open."""
        self._slow = 0

    def failed(self, now_s: float, *, at_once: bool) -> None:
        """Take note of a failure, of the kind that opens *at_once* or by repetition."""
        self._slow += 1
        if not self.is_open and (at_once or self._slow >= self._slow_in_a_row):
            self._wait_s = FIRST_WAIT_S
            self._probe_at_s = now_s + self._wait_s

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait before the next probe; 0 while closed."""
        return 0.0 if self._probe_at_s is None else max(0.0, self._probe_at_s - now_s)

    def probed(self, now_s: float, *, works: bool) -> None:
        """Take note of what a probe found."""
        if works:
            self._slow = 0
            self._probe_at_s = None
        elif self.is_open:
            self._wait_s = min(LONGEST_WAIT_S, 2 * self._wait_s)
            self._probe_at_s = now_s + self._wait_s
