"""One matcher for each live request with a grammar, and the mask of a step's logits.

A matcher is moved by the tokens that the runner draws, in the order of its steps, so results need
not have been read before the next step is launched. It stays with its request over a retraction:
each step tells how many tokens the answer has, and a matcher that is ahead is taken back. Rows
without a grammar are not touched. Another process follows the grammars (`following`), and is told
of all rows of a step at once; a row whose grammar is too slow to follow is let go, and told of with
the next `take_slow`. Knows no scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.errors import GrammarProcessError
from sluice_runtime.grammar.allowance import (
    BROKEN,
    CROWDED,
    LOST,
    MOST_CALL_SECONDS,
    MOST_MEAN_SECONDS,
    SLOW_CALL,
    STARVED,
    STUCK,
    Allowance,
    TooSlow,
    crowding,
)
from sluice_runtime.grammar.follow.following import Follower, Following
from sluice_runtime.grammar.follow.turns import LeftReason, Line, Opened, Turn, Turned
from sluice_runtime.grammar.keys import GrammarKey, KeptGrammar
from sluice_runtime.messages import Generate
from sluice_runtime.scheduler.batch import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORD_BITS: Final = 32
_LEFT: Final[Mapping[LeftReason, TooSlow]] = {
    "slow": SLOW_CALL,
    "starved": STARVED,
    "crowded": CROWDED,
    "broken": BROKEN,
}


@dataclass(frozen=True)
class Slow:
    """A request that must end, since its grammar takes too long to follow."""

    request_id: str
    key: GrammarKey
    field: str
    """That asked for the grammar."""
    why: TooSlow


class Matcher:
    """One answer and its grammar."""

    def __init__(self, number: int, kept: KeptGrammar, message: Generate) -> None:
        assert message.grammar is not None
        self.number = number
        self._kept = kept
        self._request_id = message.request_id
        self._grammar = message.grammar
        self._allowance = Allowance()
        self.slow: Slow | None = None
        self._prompt_tokens = len(message.prompt_ids)
        self._min_tokens = message.grammar.min_tokens
        self._stops = _bits(message.stop_token_ids)
        self._late_ends = _bits(message.grammar.end_token_ids if message.grammar.ends_late else [])
        self._tokens: list[int] = []
        """Of the answer, as far as it was drawn."""
        self._told = 0
        """Of them, to the follower."""
        self._follower: Follower | None = None
        """Where the answer was opened."""
        self._next: tuple[Follower, int | None] | None = None
        """Who was told of it beside, and of how many tokens; None: it did not go well."""
        self.replayed = False
        """Whether its last line had more tokens than one, of which it has the time."""

    def accept(self, token: int) -> None:
        """The token that was drawn with the last mask; the next mask takes it in."""
        self._tokens.append(token)

    def opened(self, follower: Follower) -> Opened | None:
        """What the follower has to know before a line, if anything."""
        if self._follower is follower:
            return None
        known, self._next = self._next, None
        self._follower = follower
        if known is not None and known[0] is follower and known[1] is not None:
            self._told = known[1]
            return None
        self._told = 0
        return self._opening()

    def told_beside(self, follower: Follower) -> Turn | None:
        """What one that will take over does not know yet."""
        opened, told = [self._opening()], 0
        if self._next is not None and self._next[0] is follower:
            if self._next[1] is None:
                return None
            opened, told = [], self._next[1]
        drawn = self._tokens[told:]
        self._next = follower, told + len(drawn)
        return Turn([], [], opened, [Line(self.number, told, drawn, _most_seconds(drawn))])

    def failed_beside(self) -> None:
        """It is told anew when its turn comes."""
        if self._next is not None:
            self._next = self._next[0], None

    def line(self, context_tokens: int) -> Line:
        """For the mask behind the row's first `context_tokens` tokens."""
        answered = context_tokens - self._prompt_tokens
        assert answered <= len(self._tokens), "a token was drawn behind the matcher's back"
        kept = min(self._told, answered)
        drawn = self._tokens[kept:answered]
        del self._tokens[answered:]
        self._told = answered
        if self._next is not None and self._next[1] is not None:
            self._next = self._next[0], min(self._next[1], answered)
        self.replayed = len(drawn) > 1
        return Line(self.number, kept, drawn, _most_seconds(drawn))

    def limit(self, mask: NDArray[np.int32]) -> None:
        """Takes out of a mask what may follow by the grammar, and not by the request."""
        _forbid(mask, self._late_ends)
        if len(self._tokens) < self._min_tokens:
            _forbid(mask, self._stops)

    def took(self, seconds: float) -> None:
        """For its last line; more tokens than one are a replay, and no fault of the answer."""
        if self.replayed:
            return
        if slow := self._allowance.took(seconds):
            self.give_up(slow)

    def _opening(self) -> Opened:
        return Opened(self.number, self._kept.number, self._grammar.end_token_ids)

    def give_up(self, why: TooSlow) -> None:
        """Its request is about to end; what is drawn until then is dropped."""
        key = GrammarKey(self._grammar.kind, self._grammar.text)
        self.slow = Slow(self._request_id, key, self._grammar.field, why)


def _most_seconds(drawn: Sequence[int]) -> float:
    return MOST_CALL_SECONDS + MOST_MEAN_SECONDS * max(0, len(drawn) - 1)


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

    def __init__(self, vocabulary_size: int, following: Following) -> None:
        self._vocabulary_size = vocabulary_size
        self._following = following
        self._numbers = count()
        self._closed: deque[int] = deque()
        """Numbers of matchers that neither a request nor a row refers to any more."""
        self._slow: deque[tuple[int, Slow]] = deque()
        """With the step in which each was let go."""
        self._step = 0
        self._requests: dict[str, Matcher] = {}
        self._rows: dict[int, Matcher] = {}
        self._follower: Follower | None = None
        """Whose turn the last one was."""
        self._told_beside: dict[int, Matcher] = {}
        """Those that the next follower knows: they are not closed before it has taken over."""
        following.answers = self

    def refusal(self) -> str | None:
        """Why no request may be opened now, if so."""
        return self._following.refusal()

    def open(self, message: Generate, kept: KeptGrammar) -> None:
        """Before the request joins the scheduler."""
        number = next(self._numbers)
        matcher = self._requests[message.request_id] = Matcher(number, kept, message)
        finalize(matcher, self._closed.append, number).atexit = False

    def close(self, request_id: str) -> None:
        """The request has ended; unknown ids are ignored. Its row may be in one more step."""
        self._requests.pop(request_id, None)

    def follow(self, batch: Batch) -> None:
        """Rows dropped and rows added, as the batch says."""
        self._step = batch.step
        if not (self._requests or self._rows):
            return
        for row in batch.dropped_rows:
            self._rows.pop(row, None)
        for added in batch.added_rows:
            if matcher := self._requests.get(added.request_id):
                self._rows[added.row] = matcher

    def mask(self, logits: Tensor, rows: Sequence[int], context_tokens: Tensor) -> None:
        """Sets what may not follow to -inf. logits: [m, vocabulary] of `rows`, [m]."""
        if not self._rows:
            return
        found = [(place, self._rows.get(row)) for place, row in enumerate(rows)]
        matched = [(place, one) for place, one in found if one is not None and not one.slow]
        if not matched:
            return
        contexts = context_tokens.tolist()
        words = self._filled([(matcher, contexts[place]) for place, matcher in matched])
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

    def take_slow(self, step: int) -> list[Slow]:
        """Requests that were let go up to this step, since the last call; from any thread. Of those
        let go in a later one, which may be running, this step's tokens still count."""
        taken = []
        while self._slow and self._slow[0][0] <= step:
            taken.append(self._slow.popleft()[1])
        return taken

    def told_to(self, follower: Follower) -> list[Turn]:
        """For `following`."""
        running = [matcher for matcher in list(self._rows.values()) if not matcher.slow]
        self._told_beside |= {matcher.number: matcher for matcher in running}
        return [turn for matcher in running if (turn := matcher.told_beside(follower))]

    def heard(self, turn: Turn, turned: Turned) -> None:
        """For `following`. Who could not be told in time is told with the next line."""
        matcher = self._told_beside.get(turn.lines[0].answer)
        if turned.left and matcher is not None:
            matcher.failed_beside()

    def _filled(self, matched: Sequence[tuple[Matcher, int]]) -> NDArray[np.int32]:
        """The masks of matchers whose rows have so many tokens. All is allowed to those that are
        given up here."""
        matchers = [matcher for matcher, _ in matched]
        try:
            turned, masks = self._following.turn(partial(self._turn, matched))
        except GrammarProcessError:
            words = np.empty((len(matched), -(-self._vocabulary_size // _WORD_BITS)), np.int32)
            for matcher in matchers:
                matcher.give_up(LOST)
        else:
            words = masks[: len(matched)]
            _judge(matchers, turned)
        for mask, matcher in zip(words, matchers, strict=True):
            if not (matcher.slow or mask.any()):
                matcher.give_up(STUCK)
            if matcher.slow:
                mask[:] = -1
                self._slow.append((self._step, matcher.slow))
            else:
                matcher.limit(mask)
        return words

    def _turn(
        self, matched: Sequence[tuple[Matcher, int]], follower: Follower, forgotten: list[int]
    ) -> Turn:
        if follower is not self._follower:
            self._follower, self._told_beside = follower, {}
        closed = [self._closed.popleft() for _ in range(len(self._closed))]
        opened = [new for matcher, _ in matched if (new := matcher.opened(follower))]
        return Turn(
            closed, forgotten, opened, [matcher.line(tokens) for matcher, tokens in matched]
        )


def _judge(matchers: Sequence[Matcher], turned: Turned) -> None:
    """Gives up those whose masks took too long, by themselves or together."""
    for left in turned.left:
        matcher, why = matchers[left.place], _LEFT[left.reason]
        matcher.give_up(STARVED if matcher.replayed and why.own_fault else why)
    for matcher, seconds in zip(matchers, turned.seconds, strict=True):
        if not matcher.slow:
            matcher.took(seconds)
    following = [
        (matcher, seconds)
        for matcher, seconds in zip(matchers, turned.seconds, strict=True)
        if not (matcher.slow or matcher.replayed)
    ]
    for chosen in crowding([seconds for _, seconds in following]):
        following[chosen][0].give_up(CROWDED)
