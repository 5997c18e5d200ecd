"""Drafts from a request's own tokens: what followed the last time that its last tokens were there.

Answers often copy from the prompt or from themselves: quotes, code, names, lists. Knows no model
and no request; whether a draft is right is seen when the model computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LONGEST: Final = 4
SHORTEST: Final = 2
"""Tokens that are looked up, the longest first."""
INDEXED_AT_ONCE: Final = 8192
"""Tokens in one call, so that a long prompt does not hold up a step; some ten milliseconds."""


class NGramDrafts:
    """The index of one request, whose tokens only grow. Each token is indexed once."""

    def __init__(self) -> None:
        self._followed_at: dict[tuple[int, ...], int] = {}
        """By 2 to 4 tokens in a row, the place after the last time that they were there. What ends
        the request is not in it yet, so that it does not find itself."""
        self._indexed = SHORTEST
        """Places before this one are in the index."""

    def draft(self, token_ids: Sequence[int], tokens: int) -> tuple[int, ...]:
        """At most `tokens` that may follow. A draft that reaches the end goes on with itself: a
        phrase that repeats is drafted as often as there is room."""
        place = self._place(token_ids)
        if place is None:
            return ()
        period = len(token_ids) - place
        return tuple([token_ids[place + i % period] for i in range(tokens)])

    def _place(self, token_ids: Sequence[int]) -> int | None:
        self._index(token_ids)
        size = len(token_ids)
        for length in range(min(LONGEST, size), SHORTEST - 1, -1):
            place = self._followed_at.get(tuple(token_ids[size - length :]))
            if place is not None:
                return place
        return None

    def _index(self, token_ids: Sequence[int]) -> None:
        """What lies before each new place, but for the end."""
        last = min(len(token_ids), self._indexed + INDEXED_AT_ONCE)
        for place in range(self._indexed, last):
            for length in range(SHORTEST, min(LONGEST, place) + 1):
                self._followed_at[tuple(token_ids[place - length : place])] = place
        self._indexed = max(self._indexed, last)
