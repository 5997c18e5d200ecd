"""Drafts from a request's own tokens: what followed the last time that its last tokens were there.

Answers often copy from the prompt or from themselves: quotes, code, names, lists. Knows no model
and no request; whether a draft is right is seen when the model computes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

LONGEST: Final = 4
"""Tokens that are compared at most; 2 must be equal."""
LOOKED_AT: Final = 16
"""Places that one draft compares, the last ones."""
INDEXED_AT_ONCE: Final = 16_384
"""Tokens in one call, so that a long prompt does not hold up a step; some ten milliseconds."""
LEAST_SLOTS: Final = 256


class NGramDrafts:
    """The index of one request, whose tokens only grow. Each token is indexed once, in constant
    time and some 20 bytes."""

    def __init__(self) -> None:
        self._slots = array("i")
        """By hash of two tokens, the place after the last time that they were there, or 0. Two
        pairs may have one slot: places are compared with the tokens."""
        self._before = array("i", (0, 0))
        """By place, the one that was in its slot before it. The end of the tokens is no place yet,
        so it does not find itself."""

    def draft(self, token_ids: Sequence[int], tokens: int) -> tuple[int, ...]:
        """At most `tokens` that may follow. A draft that reaches the end goes on with itself: a
        phrase that repeats is drafted as often as there is room."""
        place = self._best_place(token_ids)
        if not place:
            return ()
        period = len(token_ids) - place
        return tuple([token_ids[place + i % period] for i in range(tokens)])

    def _best_place(self, token_ids: Sequence[int]) -> int:
        """Behind most of the last tokens, of such places the last one; 0 if there is none."""
        end = len(token_ids)
        if end < 2:
            return 0
        self._index(token_ids)
        best, most = 0, 1
        place = self._slots[self._slot(token_ids, end)]
        for _ in range(LOOKED_AT):
            if not place:
                break
            equal = _in_common(token_ids, place, end)
            if equal > most:
                best, most = place, equal
            if most == LONGEST:
                break
            place = self._before[place]
        return best

    def _index(self, token_ids: Sequence[int]) -> None:
        first, last = len(self._before), len(token_ids)
        if last > len(self._slots):
            self._slots = array("i", bytes(4 * max(LEAST_SLOTS, 2 << last.bit_length())))
            first, self._before = 2, array("i", (0, 0))
        for place in range(first, min(last, first + INDEXED_AT_ONCE)):
            slot = self._slot(token_ids, place)
            self._before.append(self._slots[slot])
            self._slots[slot] = place

    def _slot(self, token_ids: Sequence[int], place: int) -> int:
        """Of the two tokens before a place."""
        return hash((token_ids[place - 2], token_ids[place - 1])) & (len(self._slots) - 1)


def _in_common(token_ids: Sequence[int], place: int, end: int) -> int:
    """How many tokens before a place are those before the end, at most LONGEST."""
    for length in range(1, min(LONGEST, place) + 1):
        if token_ids[place - length] != token_ids[end - length]:
            return length - 1
    return min(LONGEST, place)
