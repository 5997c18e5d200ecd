"""Makes drafts from a request's own tokens: those that followed an earlier occurrence of its last
tokens.

Answers often copy from the prompt or from themselves: quotes, code, names, lists. An index is kept
for each stretch of tokens. Stretches in the prefix tree have one index for all requests that share
them. Knows no model and no request; the model's computation shows whether a draft is right.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

LONGEST: Final = 4
"""Most tokens that are compared; at least 2 must be equal."""
LOOKED_AT: Final = 16
"""Most places that are compared for one draft: the latest."""
FIRST_TOKENS: Final = 256
"""Length of an answer's first stretch; each further one is twice as long."""
MOST_TOKENS: Final = 16_384
"""Maximum length of a stretch."""


class NGramIndex:
    """The places in one stretch of tokens, by the two tokens before each. A place is indexed once,
    in constant time and some 12 bytes."""

    __slots__ = ("before", "first", "last", "mask", "slots")

    def __init__(self, first: int, last: int) -> None:
        """Index of the places [first, last), none of which is indexed yet."""
        self.first, self.last = max(first, 2), last
        self.mask = (1 << max(last - first, 1).bit_length()) - 1
        self.slots = array("i", bytes(4 * (self.mask + 1)))
        """Last place with two such tokens before it, by their hash; 0: none. Two pairs may share a
        slot, so places are compared with the tokens."""
        self.before = array("i")
        """Place that was in the slot before, by place."""

    def extend(self, token_ids: Sequence[int], end: int, most: int) -> int:
        """Indexes the next places before `end`, at most `most`; returns their number."""
        slots, mask, before = self.slots, self.mask, self.before
        first = self.first + len(before)
        last = min(end, self.last, first + most)
        for place in range(first, last):
            slot = hash((token_ids[place - 2], token_ids[place - 1])) & mask
            before.append(slots[slot])
            slots[slot] = place
        return max(0, last - first)


class NGramDrafts:
    """The drafts of one request, whose tokens only grow."""

    def __init__(self, shared: Sequence[tuple[NGramIndex, int]] = ()) -> None:
        """`shared`: indexes of stretches at the beginning of the request's tokens, in order, each
        with the end of the tokens that it has in common with the request."""
        self._stretches: list[tuple[NGramIndex, int]] = []
        self._end = self._answer_tokens = 0
        self._prompt_known = False
        """Whether all stretches but the last are indexed."""
        for index, end in shared:
            self._cover(index.first)
            self._stretches.append((index, end))
            self._end = end

    def index(self, token_ids: Sequence[int], most: int) -> int:
        """Indexes at most `most` further tokens, those of the last stretch first; returns their
        number."""
        if not self._answer_tokens:  # the prompt, in stretches of its own
            self._cover(len(token_ids))
        while len(token_ids) > self._end or not self._answer_tokens:
            self._answer_tokens = min(max(2 * self._answer_tokens, FIRST_TOKENS), MOST_TOKENS)
            self._cover(self._end + self._answer_tokens)
            self._prompt_known = False
        left, length = most, len(token_ids)
        if self._prompt_known:
            index, end = self._stretches[-1]
            return index.extend(token_ids, min(end, length), most)
        for index, end in reversed(self._stretches):
            left -= index.extend(token_ids, min(end, length), left)
            if not left:
                return most
        self._prompt_known = True
        return most - left

    def draft(self, token_ids: Sequence[int], tokens: int) -> tuple[int, ...]:
        """A draft of at most `tokens` tokens, copied from after an indexed place. If the copied
        tokens reach the end of the request's, the draft continues with itself, so that a repeating
        phrase is drafted as often as there is room."""
        place = self._best_place(token_ids)
        if not place:
            return ()
        period = len(token_ids) - place
        if period >= tokens:
            return tuple(token_ids[place : place + tokens])
        return tuple([token_ids[place + i % period] for i in range(tokens)])

    def _best_place(self, token_ids: Sequence[int]) -> int:
        """The place before which most of the last tokens occur, and the latest of equal places; 0
        if there is none."""
        if len(token_ids) < 2:
            return 0
        best, most, looked_at = 0, 1, 0
        pair = hash((token_ids[-2], token_ids[-1]))
        for index, end in reversed(self._stretches):
            place = index.slots[pair & index.mask]
            while place:
                equal = _in_common(token_ids, place) if place < end else 0
                if equal > most:
                    best, most = place, equal
                looked_at += 1
                if most == LONGEST or looked_at == LOOKED_AT:
                    return best
                place = index.before[place - index.first]
        return best

    def _cover(self, end: int) -> None:
        """Adds stretches of the request's own up to `end`."""
        while self._end < end:
            last = min(end, self._end + MOST_TOKENS)
            self._stretches.append((NGramIndex(self._end, last), last))
            self._end = last


def _in_common(token_ids: Sequence[int], place: int) -> int:
    """Number of tokens before a place that equal those before the end, at most LONGEST."""
    end = len(token_ids)
    for length in range(1, min(LONGEST, place) + 1):
        if token_ids[place - length] != token_ids[end - length]:
            return length - 1
    return min(LONGEST, place)
