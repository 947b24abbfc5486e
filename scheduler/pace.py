"""How fast turns get in, and so how long one may have to wait before that is unfair.

A turn that has waited for longer than three times what it takes to let in everybody
who waits has been overtaken by rank or by size; then it is let in at the cost of
others. But letting it in moves state that nobody wanted to move. So the bound is also
so long that such moves take at most a fiftieth of the time, where the link is slow; and
it is never shorter than half a minute, nor longer than an hour.
"""

_RECENT = 0.05  # weight of the newest admission in the mean gap
_ROUNDS = 3.0
_MOVES_SHARE = 0.02
_RETRY_S = (0.05, 30.0)
_SHORTEST_S, _LONGEST_S = 30.0, 3600.0


class Pace:
    """The mean gap between admissions, the newest ones counting most."""

    def __init__(self) -> None:
        self._admitted_s: float | None = None
        self._gap_s = 0.0
        self._turn_tokens = 0.0

    @property
    def turns_per_s(self) -> float:
        """Turns let in per second; 0 until two were."""
        return 1 / self._gap_s if self._gap_s > 0 else 0.0

    @property
    def turn_tokens(self) -> int:
        """KV tokens of a turn, in the mean."""
        return round(self._turn_tokens)

    @property
    def retry_s(self) -> float:
        """How long it takes until it pays to look at the same choice again."""
        return min(max(self._gap_s / 4, _RETRY_S[0]), _RETRY_S[1])

    def admitted(self, tokens: int, now_s: float) -> None:
        """Take note of a turn of so many tokens that has been let in."""
        if self._admitted_s is None:
            self._turn_tokens = tokens
        else:
            gap_s = now_s - self._admitted_s
            self._gap_s += _RECENT * (gap_s - self._gap_s)
            self._turn_tokens += _RECENT * (tokens - self._turn_tokens)
        self._admitted_s = now_s

    def age_bound_s(self, waiting: int, move_s: float) -> float:
        """Return how long a turn may wait when *waiting* do and a move takes *move_s*.

        >>> pace = Pace()
        >>> for second in range(100):
        ...     pace.admitted(1000, second)
        >>> pace.age_bound_s(2, 0.1), pace.age_bound_s(2, 4.0)
        (30.0, 200.0)
        """
        round_s = _ROUNDS * waiting * self._gap_s
        bound_s = max(round_s, move_s / _MOVES_SHARE)
        return min(max(bound_s, _SHORTEST_S), _LONGEST_S)
