"""One matcher for each live request with a grammar, and the mask of a step's logits.

A matcher is moved by the tokens that the runner draws, in the order of its steps, so results need
not have been read before the next step is launched. It stays with its request over a retraction:
each step tells how many tokens the answer has, and a matcher that is ahead is taken back. Rows
without a grammar are not touched. The library is called in a thread aside, since its calls cannot
be interrupted; a row whose grammar is too slow to follow is let go, and told of with the next
`take_slow`. Knows no scheduler.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.grammar.allowance import (
    CROWDED,
    MOST_CALL_SECONDS,
    SLOW_CALL,
    STARVED,
    Allowance,
    TooSlow,
    crowding,
)
from sluice_runtime.grammar.aside import Aside
from sluice_runtime.grammar.pool import GrammarKey
from sluice_runtime.messages import Generate
from sluice_runtime.scheduler.batch import NO_TOKEN, Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sluice_runtime.grammar.native import CompiledGrammar, GrammarMatcher

_WORD_BITS: Final = 32
_MOST_BUSY: Final = 2
"""Calls that were given up and still use a processor, before no request is taken any more."""


@dataclass(frozen=True)
class Slow:
    """A request that must end, since its grammar takes too long to follow."""

    request_id: str
    key: GrammarKey
    field: str
    """That asked for the grammar."""
    why: TooSlow


class Matcher:
    """How far one answer is in its grammar."""

    def __init__(
        self, native: GrammarMatcher, message: Generate, clock: Callable[[], float]
    ) -> None:
        assert message.grammar is not None
        self._native = native
        self._clock = clock
        self._request_id = message.request_id
        self._grammar = message.grammar
        self._allowance = Allowance()
        self.slow: Slow | None = None
        self.seconds = 0.0
        """What it took in this step."""
        self._prompt_tokens = len(message.prompt_ids)
        self._min_tokens = message.grammar.min_tokens
        self._stops = _bits(message.stop_token_ids)
        self._late_ends = _bits(message.grammar.end_token_ids if message.grammar.ends_late else [])
        self._drawn: list[int] = []
        """Not taken in yet."""
        self._accepted = 0
        self._lost = False

    def accept(self, token: int) -> None:
        """The token that was drawn with the last mask; the next mask takes it in."""
        self._drawn.append(token)

    def fill(self, words: NDArray[np.int32], place: int, context_tokens: int) -> None:
        """Writes at `words[place]` what may follow the row's first `context_tokens` tokens."""
        began = self._clock()
        self._fill(words, place, context_tokens - self._prompt_tokens)
        self.seconds = self._clock() - began
        if slow := self._allowance.took(self.seconds):
            self.give_up(slow)

    def give_up(self, why: TooSlow) -> None:
        """Its request is about to end; what is drawn until then is dropped. The library may still
        be at work with it, and it must not be touched again."""
        grammar = self._grammar
        key = GrammarKey(grammar.kind, grammar.text)
        self.slow = Slow(self._request_id, key, grammar.field, why)

    def _fill(self, words: NDArray[np.int32], place: int, answered: int) -> None:
        self._go_to(answered)
        if self._lost or self._native.is_terminated():
            words[place] = -1  # The request has ended; whatever is drawn is dropped.
            return
        assert self._accepted == answered, "a token was drawn behind the matcher's back"
        self._native.fill_next_token_bitmask(words, place, False)
        _forbid(words[place], self._late_ends)
        if answered < self._min_tokens:
            _forbid(words[place], self._stops)

    def _go_to(self, answered: int) -> None:
        """Takes in what was drawn, and back what was drawn and not kept."""
        if self._accepted > answered:
            self._native.rollback(self._accepted - answered)
            self._accepted, self._lost = answered, False
        kept = self._drawn[: answered - self._accepted]
        self._drawn = []
        for token in kept:
            if token == NO_TOKEN:
                self._lost = True
            if self._lost or self._native.is_terminated():
                return
            accepted = self._native.accept_token(token, False)
            assert accepted, f"token {token} was drawn though its grammar forbids it"
            self._accepted += 1


def _bits(tokens: Iterable[int]) -> dict[int, int]:
    """By word of a mask, all bits but those of `tokens`."""
    bits: dict[int, int] = {}
    for token in tokens:
        word, bit = divmod(token, _WORD_BITS)
        bits[word] = bits.get(word, -1) & ~(1 << bit)
    return bits


def _forbid(words: NDArray[np.int32], bits: Mapping[int, int]) -> None:
    """Takes tokens out of a mask, unless it has no others."""
    if not bits:
        return
    left = words.copy()
    for word, others in bits.items():
        left[word] &= np.int64(others).astype(np.int32)
    if left.any():
        words[:] = left


class Matchers:
    """Matchers by request, and by the rows that run now."""

    def __init__(self, vocabulary_size: int, clock: Callable[[], float] = time.thread_time) -> None:
        self._vocabulary_size = vocabulary_size
        self._clock = clock
        self._aside = Aside(MOST_CALL_SECONDS)
        self._slow: deque[Slow] = deque()
        self._requests: dict[str, Matcher] = {}
        self._rows: dict[int, Matcher] = {}

    @property
    def overrun(self) -> bool:
        """Whether calls that were given up still use so much that no request may be opened."""
        return self._aside.busy >= _MOST_BUSY

    def open(self, message: Generate, compiled: CompiledGrammar) -> None:
        """Before the request joins the scheduler."""
        from sluice_runtime.grammar.native import GrammarMatcher

        assert message.grammar is not None
        ends = message.grammar.end_token_ids
        native = GrammarMatcher(compiled, ends, False, -1, None)
        self._requests[message.request_id] = Matcher(native, message, self._clock)

    def close(self, request_id: str) -> None:
        """The request has ended; unknown ids are ignored. Its row may be in one more step."""
        self._requests.pop(request_id, None)

    def follow(self, batch: Batch) -> None:
        """Rows dropped and rows added, as the batch says."""
        if not (self._requests or self._rows):
            return
        for row in batch.dropped_rows:
            self._rows.pop(row, None)
        for added in batch.added_rows:
            if matcher := self._requests.get(added.request_id):
                self._rows[added.row] = matcher

    def mask(self, logits: Tensor, rows: Sequence[int], context_tokens: Tensor) -> None:
        """Sets what may not follow to -inf. logits: [m, vocabulary] of `rows`, [m]."""
        matched = [(place, self._rows[row]) for place, row in enumerate(rows) if row in self._rows]
        if not matched:
            return
        words = np.empty((len(matched), -(-self._vocabulary_size // _WORD_BITS)), np.int32)
        contexts = context_tokens.tolist()
        self._fill(words, [(matcher, contexts[place]) for place, matcher in matched])
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        forbidden = torch.from_numpy(bits[:, : self._vocabulary_size]) == 0
        places = torch.tensor([place for place, _ in matched])
        logits[places] = logits[places].masked_fill(forbidden, -torch.inf)

    def advance(self, rows: Sequence[int], tokens: Iterable[int]) -> None:
        """The tokens that were drawn for `rows`, in their order."""
        if not self._rows:
            return
        for row, token in zip(rows, tokens, strict=True):
            if matcher := self._rows.get(row):
                matcher.accept(token)

    def take_slow(self) -> list[Slow]:
        """Requests that were let go since the last call; from any thread."""
        taken = []
        while self._slow:
            taken.append(self._slow.popleft())
        return taken

    def _fill(self, words: NDArray[np.int32], matched: Sequence[tuple[Matcher, int]]) -> None:
        """One line of `words` for each matcher and the tokens of its row. Lines of those that are
        given up, now or before, allow all."""
        followed = [
            (line, matcher, context)
            for line, (matcher, context) in enumerate(matched)
            if not matcher.slow
        ]
        given_up = self._aside.make(
            [partial(matcher.fill, words, line, context) for line, matcher, context in followed]
        )
        for left in given_up:
            followed[left.place][1].give_up(STARVED if left.starved else SLOW_CALL)
        following = [matcher for _, matcher, _ in followed if not matcher.slow]
        for chosen in crowding([matcher.seconds for matcher in following]):
            following[chosen].give_up(CROWDED)
        for line, (matcher, _) in enumerate(matched):
            if matcher.slow:
                words[line] = -1
        self._slow.extend(matcher.slow for _, matcher, _ in followed if matcher.slow)
