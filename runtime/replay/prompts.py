"""Synthetic prompts: token ids that stand for text nobody recorded.

Traces hold lengths, never content. Content matters to an engine only in what is
shared, so ids are drawn per session from a seeded generator: sessions share nothing, a
session's own history is what it was, and every policy sees the same ids.
"""

import random
from array import array
from collections.abc import Sequence


class PromptSource:
    """Draws the token ids of one session from *vocabulary*."""

    def __init__(self, *, seed: int, session: str, vocabulary: Sequence[int]) -> None:
        self._random = random.Random(f"{seed}/{session}")
        self._vocabulary = vocabulary

    def draw(self, tokens: int) -> "array[int]":
        """Return that many ids."""
        if len(self._vocabulary) == 1:
            return array("i", self._vocabulary) * tokens
        return array("i", self._random.choices(self._vocabulary, k=tokens))
