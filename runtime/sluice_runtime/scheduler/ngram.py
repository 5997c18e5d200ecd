"""Makes drafts from a request's own tokens: those that followed an earlier occurrence of its last
tokens.

Answers often copy from the prompt or from themselves: quotes, code, names, lists. Knows no model
and no request; the model's computation shows whether a draft is right.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

LONGEST: Final = 4
"""Most tokens that are compared; at least 2 must be equal."""
LOOKED_AT: Final = 16
"""Most places that are compared for one draft: the latest."""
INDEXED_AT_ONCE: Final = 16_384
"""Most tokens indexed in one call, which takes some ten milliseconds, so that a long prompt does
not hold up a step."""
LEAST_SLOTS: Final = 256


class NGramDrafts:
    """The index of one request, whose tokens only grow. Each token is indexed once, in constant
    time and some 20 bytes."""

    def __init__(self) -> None:
        self._slots = array("i")
        """Place after the last occurrence of two tokens, by their hash; 0: none. Two pairs may
        share a slot, so places are compared with the tokens."""
        self._before = array("i", (0, 0))
        """Place that was in the slot before, by place. The end of the tokens is no place yet, so it
        does not find itself."""

    def draft(self, token_ids: Sequence[int], tokens: int) -> tuple[int, ...]:
        """A draft of at most `tokens` tokens. If the copied tokens reach the end of the request's,
        the draft continues with itself, so that a repeating phrase is drafted as often as there is
        room."""
        place = self._best_place(token_ids)
        if not place:
            return ()
        period = len(token_ids) - place
        return tuple([token_ids[place + i % period] for i in range(tokens)])

    def _best_place(self, token_ids: Sequence[int]) -> int:
        """The place before which most of the last tokens occur, and the latest of equal places; 0
        if there is none."""
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
        """Slot of the two tokens before a place."""
        return hash((token_ids[place - 2], token_ids[place - 1])) & (len(self._slots) - 1)


def _in_common(token_ids: Sequence[int], place: int, end: int) -> int:
    """Number of tokens before a place that equal those before the end, at most LONGEST."""
    for length in range(1, min(LONGEST, place) + 1):
        if token_ids[place - length] != token_ids[end - length]:
            return length - 1
    return min(LONGEST, place)
