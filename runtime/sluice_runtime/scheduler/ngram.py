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
FIRST_TOKENS: Final = 512
"""Length of an answer's first stretch; each further one is four times as long."""
MOST_TOKENS: Final = 16_384
"""Maximum length of a stretch."""


class NGramIndex:
    """The places in one stretch of tokens, by the two tokens before each. A place is indexed once,
    in constant time and some 20 bytes."""

    __slots__ = ("before", "first", "last", "mask", "slots")

    def __init__(self, first: int, last: int) -> None:
        """Index of the places [first, last), none of which is indexed yet."""
        self.first, self.last = max(first, 2), last
        self.mask = (2 << max(last - first, 1).bit_length()) - 1
        self.slots = array("i", bytes(4 * (self.mask + 1)))
        """Last place with two such tokens before it, by their hash; 0: none. Two pairs may share a
        slot, so places are compared with the tokens."""
        self.before = array("i")
        """Place that was in the slot before, by place."""

    def extend(self, token_ids: Sequence[int], end: int, most: int) -> int:
        """Indexes the next places before `end`, at most `most`; returns their number."""
        slots, mask, before = self.slots, self.mask, self.before
        first = self.first + len(before)
        last = end if end < self.last else self.last
        if first >= last:
            return 0
        if last - first > most:
            last = first + most
        before_last = token_ids[first - 2]
        for place in range(first, last):
            token = token_ids[place - 1]
            slot = hash((before_last, token)) & mask
            before.append(slots[slot])
            slots[slot], before_last = place, token
        return last - first


class NGramDrafts:
    """The drafts of one request, whose tokens only grow."""

    def __init__(self, shared: Sequence[tuple[NGramIndex, int]] = ()) -> None:
        """`shared`: indexes of stretches at the beginning of the request's tokens, in order, each
        with the end of the tokens that it has in common with the request."""
        self._stretches: list[tuple[NGramIndex, int]] = []
        """Stretches, the latest first, each with the end of the tokens in common."""
        self._end = self._answer_tokens = 0
        self._prompt_known = False
        """Whether all stretches but the last are indexed."""
        for index, end in shared:
            self._cover(index.first)
            self._stretches.insert(0, (index, end))
            self._end = end

    def index(self, token_ids: Sequence[int], most: int) -> int:
        """Indexes at most `most` further tokens, those of the last stretch first; returns their
        number."""
        length = len(token_ids)
        if self._prompt_known and length <= self._end:
            return self._stretches[0][0].extend(token_ids, length, most)
        if not self._answer_tokens:  # the prompt, in stretches of its own
            self._cover(length)
        while length > self._end or not self._answer_tokens:
            self._answer_tokens = min(max(4 * self._answer_tokens, FIRST_TOKENS), MOST_TOKENS)
            self._cover(self._end + self._answer_tokens)
            self._prompt_known = False
        left = most
        for index, end in self._stretches:
            left -= index.extend(token_ids, min(end, length), left)
            if not left:
                return most
        self._prompt_known = True
        return most - left

    def draft(self, token_ids: Sequence[int], tokens: int) -> tuple[int, ...]:
        """A draft of at most `tokens` tokens, copied from after the indexed place before which most
        of the last tokens occur, the latest of equal places. If the copied tokens reach the end of
        the request's, the draft continues with itself, so that a repeating phrase is drafted as
        often as there is room."""
        length = len(token_ids)
        if length < 2:
            return ()
        last, second, third = token_ids[-1], token_ids[-2], token_ids[-3] if length > 2 else -1
        best, most, left, pair = 0, 1, LOOKED_AT, hash((second, last))
        for index, end in self._stretches:
            place, before, first = index.slots[pair & index.mask], index.before, index.first
            while place and left and most < LONGEST:
                if (
                    place < end
                    and token_ids[place - 1] == last
                    and token_ids[place - 2] == second
                    and (not best or token_ids[place - 3] == third)
                    and (equal := _in_common(token_ids, place)) > most
                ):
                    best, most = place, equal
                left -= 1
                place = before[place - first]
        if not best:
            return ()
        if (period := length - best) >= tokens:
            return tuple(token_ids[best : best + tokens])
        return tuple([token_ids[best + i % period] for i in range(tokens)])

    def _cover(self, end: int) -> None:
        """Adds stretches of the request's own up to `end`."""
        while self._end < end:
            last = min(end, self._end + MOST_TOKENS)
            self._stretches.insert(0, (NGramIndex(self._end, last), last))
            self._end = last


def _in_common(token_ids: Sequence[int], place: int) -> int:
    """Number of tokens before a place that equal those before the end, at most LONGEST; two do."""
    if place == 2 or token_ids[place - 3] != token_ids[-3]:
        return 2
    return 3 if place == 3 or token_ids[place - LONGEST] != token_ids[-LONGEST] else LONGEST
