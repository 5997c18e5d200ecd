"""The drafts of one row: where they come from, and how often they were right.

Knows no step: which rows draft in a step, and how much, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from sluice_runtime.scheduler.batch import NO_TOKEN
from sluice_runtime.scheduler.ngram import MOST_TOKENS, NGramDrafts, NGramIndex
from sluice_runtime.scheduler.prefix_cache import path_of
from sluice_runtime.scheduler.request import Request, lock_of

FIRST_CHANCE: Final = 0.6
"""Initial acceptance probability of a row's drafts, before any was compared with a drawn token."""
LEARNING: Final = 0.15
"""EMA weight of one compared draft in its row's acceptance probability, without a draft model."""
FIRST_WAIT: Final = 8
"""Tokens that a row generates without drafts before a probe; doubled after each wrong probe."""
LONGEST_WAIT: Final = 512
NEW_TOKENS: Final = 8
"""Maximum tokens of each row that a step indexes in any case: those of the last steps."""
SHARED_TOKENS: Final = 2048
"""Minimum length of a cached stretch whose index is shared by all requests that have it."""


class RowDrafts(Protocol):
    """Source of the drafts of one request, whose `token_ids` only grow from call to call."""

    def index(self, token_ids: Sequence[int], most: int) -> int:
        """Takes in at most `most` further tokens; returns their number."""
        ...

    def draft(self, token_ids: Sequence[int], tokens: int) -> tuple[int, ...]:
        """A draft of at most `tokens` tokens."""
        ...


class ModelDrafts:
    """Source of placeholders for drafts that the draft model will propose in the step that verifies
    them: see `VerifyRow`."""

    def index(self, token_ids: Sequence[int], most: int) -> int:
        """Nothing: the model reads the tokens itself."""
        return 0

    def draft(self, token_ids: Sequence[int], tokens: int) -> tuple[int, ...]:
        """Placeholders, one for each draft: see `RowDrafts`."""
        return (NO_TOKEN,) * tokens


def ngram_drafts(request: Request, page_size: int) -> NGramDrafts:
    """Drafts from the request's tokens; long cached stretches have one index for all."""
    shared: dict[NGramIndex, int] = {}
    end = 0
    for node in path_of(lock_of(request))[::-1]:
        first, end = end, end + len(node.page_ids) * page_size
        if end - first >= SHARED_TOKENS and not node.ngrams:
            starts = range(first, end, MOST_TOKENS)
            node.ngrams = tuple([NGramIndex(at, min(at + MOST_TOKENS, end)) for at in starts])
        shared |= {i: min(i.last, end) for i in node.ngrams if i.first < end and i.last > first}
    return NGramDrafts(tuple(shared.items()))


@dataclass(slots=True)
class DraftedRow:
    """The drafts of one request."""

    source: RowDrafts
    chance: float = FIRST_CHANCE
    """Probability that a draft is right if all earlier drafts are."""
    drafts: tuple[int, ...] = ()
    """Drafts after the tokens of the last call, until one was compared; NO_TOKEN: the draft model
    would have to propose it."""
    tokens: int = 0
    """Number of the request's tokens at the last call of `follow`."""
    waits_from_tokens: int = 0
    """Number of tokens when the row last had drafts, or at first."""
    wait_tokens: int = FIRST_WAIT
    lacks_index: bool = False
    """Whether some of the tokens are not indexed yet."""
    probe_again: bool = False
    """Whether the last probe only caught up, so that the next step should probe again."""

    def follow(self, token_ids: Sequence[int], most: int) -> None:
        """Updates the row to the request's present tokens, compares the first draft with the drawn
        token, and looks up at most `most` further drafts."""
        length = len(token_ids)
        if length == self.tokens:
            return
        if self.drafts and self.drafts[0] != NO_TOKEN and length == self.tokens + 1:
            self.learn(right=token_ids[-1] == self.drafts[0])
        self.tokens = length
        if self.source.index(token_ids, NEW_TOKENS) == NEW_TOKENS:
            self.lacks_index = True
        self.drafts = self.source.draft(token_ids, most)

    def learn(self, *, right: bool, weight: float = LEARNING) -> None:
        """Records whether a draft equalled the drawn token."""
        self.chance += weight * (right - self.chance)
        self.drafts = ()

    def wait(self, tokens: int, *, right: bool, probed: bool) -> None:
        """Starts the wait for the next probe, after drafts; `tokens`: the request's tokens now;
        `right`: whether the first draft was right."""
        self.waits_from_tokens = tokens
        if right:
            self.wait_tokens = FIRST_WAIT
        elif probed:
            self.wait_tokens = min(2 * self.wait_tokens, LONGEST_WAIT)

    @property
    def has_waited(self) -> bool:
        """Whether the row had its last drafts long ago."""
        return self.tokens - self.waits_from_tokens >= self.wait_tokens
