"""``thunder``: a gate that holds the working set of all sessions within memory.

The rule of ThunderAgent (arXiv 2602.13692; its released code) with the two thresholds
of Dynamo's port of it. What runs counts in full, what waits for a tool counts by half
for every second that it has waited: under a memoryless law of waits no other decay is
consistent, says the paper. The gate closes when more than 0.95 of memory is in use by
that count, and opens again at 0.80; while it is open, whoever fits below the upper
threshold gets in. The smallest acting sessions are paused first, since computing a
context again costs by its square. A paused session passes the gate again.

In our terms: sessions are paused when a turn lacks memory, not every five seconds, and
only then is their state evicted; a turn that runs is never paused. Their order among
those at the gate, the returning before the new and the smaller first, holds as far as
the queue allows: parked ones are ahead, and whoever fits may pass a larger one that has
not waited long. Their 100 tokens of slack per session are not needed, since a turn's
growth is reserved here; nor are their forced resumptions after 1,800 seconds, since the
age bound does that. With ``:tier`` what is evicted is not lost: its session is not
paused, which in the study sessions was as good on a slow link and better on a fast one.
"""

from collections.abc import Iterator

from ..policy import Victim, View
from ..session import Session
from .evicting import Evicting

_CLOSES_AT, _OPENS_AT = 0.95, 0.80
_HALF_LIFE_S = 1.0


class Thunder(Evicting):
    """Let in what fits the working set; the smallest acting sessions make room."""

    def __init__(self, *, tier: bool = False) -> None:
        super().__init__(tier=tier)
        self._open = True

    @property
    def name(self) -> str:
        """``thunder``, and ``:tier`` if the engine has one."""
        return "thunder:tier" if self._tier else "thunder"

    def victims(self, view: View, now_s: float, *, forced: bool) -> Iterator[Victim]:
        """Yield those who wait, the smallest first."""
        for session in sorted(view.waiting, key=lambda session: session.held_tokens):
            yield Victim(session, self.traits.departure, demoted=not self._tier)

    def admits(
        self, session: Session, lack_tokens: int, view: View, now_s: float
    ) -> bool:
        """Let it in if the gate is open and it fits the working set."""
        used_tokens = _working_set_tokens(view, now_s)
        most_tokens = _CLOSES_AT * view.kv_tokens
        if used_tokens > most_tokens:
            self._open = False
        elif used_tokens <= _OPENS_AT * view.kv_tokens:
            self._open = True
        # Whoever is larger than that would never get in: it may have all of it.
        needed_tokens = min(lack_tokens + view.free_tokens, most_tokens)
        return self._open and used_tokens + needed_tokens <= most_tokens


def _working_set_tokens(view: View, now_s: float) -> int:
    """Return the tokens in use, where those of a waiting session decay."""
    used_tokens = float(view.kv_tokens - view.free_tokens)
    for session in view.waiting:
        left = 0.5 ** ((now_s - session.waits_since_s) / _HALF_LIFE_S)
        used_tokens -= session.held_tokens * (1 - left)
    return round(used_tokens)
