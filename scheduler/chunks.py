"""Cuts prefills so that running decodes keep their pace.

While a prompt is computed, those who decode wait for their next token. With a target
for the time between two tokens, a prefill is cut into chunks that take, with the decode
step that follows, no longer than that; between two chunks decodes and other prefills
have their turn. While anybody decodes one prefill runs at a time, since several would
share what the target leaves.
"""

from .outlook import Outlook
from .session import Session

# Below this a chunk is mostly overhead, and the target can't be met by cutting.
_SMALLEST_TOKENS = 32


class Chunks:
    """How far a prefill may go, and how many may run, under a target."""

    def __init__(self, outlook: Outlook, target_itl_s: float | None) -> None:
        self._outlook = outlook
        self._target_itl_s = target_itl_s

    def most_prefills(self, most: int) -> int:
        """Return how many of at most *most* prefills may run now."""
        if self._target_itl_s is None or not self._outlook.decoding_sequences:
            return most
        return 1

    def until_tokens(self, session: Session) -> int | None:
        """Return up to which token of its prompt to compute now; None is all of it."""
        turn, outlook = session.turn, self._outlook
        assert turn is not None
        sequences = outlook.decoding_sequences
        # A copy of what is computed again is longer than the first chunk would be.
        if self._target_itl_s is None or not sequences or turn.recomputed:
            return None
        step_s = outlook.decode_step_s(sequences, outlook.decoding_tokens)
        done_tokens = session.reusable_tokens
        left_tokens = turn.prompt_tokens - done_tokens
        chunk_tokens = self._fitting(left_tokens, done_tokens, step_s)
        return None if chunk_tokens >= left_tokens else done_tokens + chunk_tokens

    def _fitting(self, most: int, context_tokens: int, step_s: float) -> int:
        """Return the largest chunk that leaves time for a step, by bisection."""
        assert self._target_itl_s is not None
        budget_s = self._target_itl_s - step_s
        low, high = _SMALLEST_TOKENS, max(most, _SMALLEST_TOKENS)
        while low < high:
            middle = (low + high + 1) // 2
            if self._outlook.prefill_s(middle, context_tokens) <= budget_s:
                low = middle
            else:
                high = middle - 1
        return low
