"""One matcher for each live request with a grammar, and the masks of a step's tokens.

A matcher takes the tokens that the runner draws, in the order of its steps, so the next step can be
launched before results have been read. It outlives a retraction of its request: each step carries
the length of the answer, and a matcher that is ahead is rolled back. Rows without a grammar are not
touched. A mask worker (`mask_worker_pool`) does the matching, once a step for all rows; a row whose
grammar is too slow is given up and returned by the next `take_slow`. Knows no scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import finalize

import numpy as np

from sluice_runtime.errors import GrammarProcessError
from sluice_runtime.grammar.allowance import (
    BROKEN,
    CROWDED,
    LOST,
    MAX_CALL_SECONDS,
    MAX_MEAN_SECONDS,
    REFUSED,
    SLOW_CALL,
    STARVED,
    STUCK,
    Allowance,
    TooSlow,
    crowding,
)
from sluice_runtime.grammar.follow.mask_worker_pool import MaskWorker, MaskWorkerPool
from sluice_runtime.grammar.follow.turns import LeftReason, Line, Opened, Turn, Turned
from sluice_runtime.grammar.keys import GrammarKey, KeptGrammar
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.wire.messages import Generate

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORD_BITS: Final = 32
_LEFT: Final[Mapping[LeftReason, TooSlow]] = {
    "slow": SLOW_CALL,
    "starved": STARVED,
    "crowded": CROWDED,
    "broken": BROKEN,
    "refused": REFUSED,
}


@dataclass(frozen=True)
class Slow:
    """A request that must end because its grammar cannot be followed any further."""

    request_id: str
    key: GrammarKey
    field: str
    """The request's field that asked for the grammar."""
    why: TooSlow


@dataclass(frozen=True)
class Masks:
    """Of k rows of a step. Valid until the next are made."""

    places: Sequence[int]
    """[k] which of the step's rows."""
    words: NDArray[np.int32]
    """[k, vocabulary / 32]: a bit for each token that is allowed, the lowest first."""


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
        self._tokens = list(message.generated_ids)
        """Of the answer, as drawn so far."""
        self._sent = 0
        """How many of them the worker has."""
        self._worker: MaskWorker | None = None
        """That has the answer open."""
        self._next: tuple[MaskWorker, int | None] | None = None
        """A replacement and how many tokens it has; None: sending them failed."""
        self.resumed = bool(message.generated_ids)
        """Whether its first tokens come from outside, and may be any."""
        self.replayed = False
        """Whether its last line had several tokens; its time is that of all of them."""

    def accept(self, token: int) -> None:
        """The token that was drawn with the last mask; the next mask takes it in."""
        self._tokens.append(token)

    def opened(self, worker: MaskWorker) -> Opened | None:
        """What the worker needs before a line; None: it has the answer open."""
        if self._worker is worker:
            return None
        known, self._next = self._next, None
        self._worker = worker
        if known is not None and known[0] is worker and known[1] is not None:
            self._sent = known[1]
            return None
        self._sent = 0
        return self._opening()

    def update_for(self, worker: MaskWorker) -> Turn | None:
        """What a replacement does not have yet."""
        opened, sent = [self._opening()], 0
        if self._next is not None and self._next[0] is worker:
            if self._next[1] is None:
                return None
            opened, sent = [], self._next[1]
        drawn = self._tokens[sent:]
        self._next = worker, sent + len(drawn)
        return Turn([], [], opened, [Line(self.number, sent, drawn, _max_seconds(drawn))])

    def update_failed(self) -> None:
        """The answer is opened anew when the replacement has taken over."""
        if self._next is not None:
            self._next = self._next[0], None

    def line(self, context_tokens: int) -> Line:
        """For the mask behind the row's first `context_tokens` tokens."""
        answered = context_tokens - self._prompt_tokens
        assert answered <= len(self._tokens), "a token was drawn behind the matcher's back"
        kept = min(self._sent, answered)
        drawn = self._tokens[kept:answered]
        del self._tokens[answered:]
        self._sent = answered
        if self._next is not None and self._next[1] is not None:
            self._next = self._next[0], min(self._next[1], answered)
        self.replayed = len(drawn) > 1
        return Line(self.number, kept, drawn, _max_seconds(drawn))

    def limit(self, mask: NDArray[np.int32]) -> None:
        """Takes tokens out of a mask that the grammar allows, but not the request (yet)."""
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
        """Its request is about to end; tokens drawn until then are dropped."""
        key = GrammarKey(self._grammar.kind, self._grammar.text)
        self.slow = Slow(self._request_id, key, self._grammar.field, why)


def _max_seconds(drawn: Sequence[int]) -> float:
    return MAX_CALL_SECONDS + MAX_MEAN_SECONDS * max(0, len(drawn) - 1)


def _bits(tokens: Iterable[int]) -> dict[int, int]:
    """By word of a mask, its bits without those of `tokens`."""
    bits: dict[int, int] = {}
    for token in tokens:
        word, bit = divmod(token, _WORD_BITS)
        bits[word] = bits.get(word, -1) & ~(1 << bit)
    return bits


def _forbid(words: NDArray[np.int32], bits: Mapping[int, int]) -> None:
    """Takes tokens out of a mask, unless that would leave none."""
    if not bits:
        return
    left = words.copy()
    for word, others in bits.items():
        left[word] &= np.int64(others).astype(np.int32)
    if left.any():
        words[:] = left


class Matchers:
    """Matchers by request, and by the rows that run now."""

    def __init__(self, vocabulary_size: int, pool: MaskWorkerPool) -> None:
        self._vocabulary_size = vocabulary_size
        self._pool = pool
        self._numbers = count()
        self._closed: deque[int] = deque()
        """Numbers of matchers that no request and no row refers to any more."""
        self._slow: deque[tuple[int, Slow]] = deque()
        """With the step in which each was given up."""
        self._step = 0
        self._requests: dict[str, Matcher] = {}
        self._rows: dict[int, Matcher] = {}
        self._worker: MaskWorker | None = None
        """Of the last turn."""
        self._updated: dict[int, Matcher] = {}
        """Matchers that a replacement has: kept alive until it has taken over."""
        pool.answers = self

    def refusal(self) -> str | None:
        """Why no request may be opened now, if so."""
        return self._pool.refusal()

    def open(self, message: Generate, kept: KeptGrammar) -> None:
        """Before the request joins the scheduler."""
        number = next(self._numbers)
        matcher = self._requests[message.request_id] = Matcher(number, kept, message)
        finalize(matcher, self._closed.append, number).atexit = False

    def resumed(self, request_id: str, token: int) -> None:
        """Its first token was drawn by another engine. No step knows the request yet."""
        if matcher := self._requests.get(request_id):
            matcher.accept(token)

    def close(self, request_id: str) -> None:
        """The request has ended; unknown ids are ignored. Its row may be in one more step."""
        self._requests.pop(request_id, None)

    def follow(self, batch: Batch) -> None:
        """Applies the rows that a batch drops and adds."""
        self._step = batch.step
        if not (self._requests or self._rows):
            return
        for row in batch.dropped_rows:
            self._rows.pop(row, None)
        for added in batch.added_rows:
            if matcher := self._requests.get(added.request_id):
                self._rows[added.row] = matcher

    def follows(self, rows: Sequence[int]) -> bool:
        """Whether one of the rows has a grammar: its mask needs all tokens before it."""
        return bool(self._rows) and any(row in self._rows for row in rows)

    def masks(self, rows: Sequence[int], context_tokens: Sequence[int]) -> Masks | None:
        """Of those of `rows` that follow a grammar, behind so many tokens of each; None: no row
        does."""
        if not self._rows:
            return None
        found = [(place, self._rows.get(row)) for place, row in enumerate(rows)]
        matched = [(place, one) for place, one in found if one is not None and not one.slow]
        if not matched:
            return None
        words = self._filled([(matcher, context_tokens[place]) for place, matcher in matched])
        return Masks([place for place, _ in matched], words)

    def accepting(self, rows: Sequence[int]) -> Callable[[Sequence[int]], None]:
        """Takes the tokens that a step draws for `rows`, in their order. The matchers are those of
        now: when the tokens are known, the next step may have dropped rows."""
        if not self._rows:
            return _accept_nothing
        matched = [(place, self._rows[row]) for place, row in enumerate(rows) if row in self._rows]

        def accept(tokens: Sequence[int]) -> None:
            for place, matcher in matched:
                matcher.accept(tokens[place])

        return accept

    def take_slow(self, step: int) -> list[Slow]:
        """Requests given up in this step or before, since the last call; from any thread. Those of
        a later step, which may be running, stay: their tokens of this step still count."""
        taken = []
        while self._slow and self._slow[0][0] <= step:
            taken.append(self._slow.popleft()[1])
        return taken

    def updates_for(self, worker: MaskWorker) -> list[Turn]:
        """For `mask_worker_pool`."""
        running = [matcher for matcher in list(self._rows.values()) if not matcher.slow]
        self._updated |= {matcher.number: matcher for matcher in running}
        return [turn for matcher in running if (turn := matcher.update_for(worker))]

    def update_done(self, turn: Turn, turned: Turned) -> None:
        """For the pool. What a replacement did not take in time is sent with the next line."""
        matcher = self._updated.get(turn.lines[0].answer)
        if turned.left and matcher is not None:
            matcher.update_failed()

    def _filled(self, matched: Sequence[tuple[Matcher, int]]) -> NDArray[np.int32]:
        """The masks of matchers, each with the length of its row. A matcher that is given up here
        gets a mask that allows all tokens."""
        matchers = [matcher for matcher, _ in matched]
        try:
            turned, masks = self._pool.turn(partial(self._turn, matched))
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
        self, matched: Sequence[tuple[Matcher, int]], worker: MaskWorker, forgotten: list[int]
    ) -> Turn:
        if worker is not self._worker:
            self._worker, self._updated = worker, {}
        closed = [self._closed.popleft() for _ in range(len(self._closed))]
        opened = [new for matcher, _ in matched if (new := matcher.opened(worker))]
        return Turn(
            closed, forgotten, opened, [matcher.line(tokens) for matcher, tokens in matched]
        )


def _accept_nothing(tokens: Sequence[int]) -> None:
    """No row has a grammar."""


def _judge(matchers: Sequence[Matcher], turned: Turned) -> None:
    """Gives up matchers whose masks took too long, alone or together."""
    for left in turned.left:
        matcher, why = matchers[left.place], _LEFT[left.reason]
        if why is REFUSED and not matcher.resumed:
            why = BROKEN
        matcher.give_up(STARVED if matcher.replayed and why is SLOW_CALL else why)
    for matcher, seconds in zip(matchers, turned.seconds, strict=True):
        if not matcher.slow:
            matcher.took(seconds)
    on_time = [
        (matcher, seconds)
        for matcher, seconds in zip(matchers, turned.seconds, strict=True)
        if not (matcher.slow or matcher.replayed)
    ]
    for chosen in crowding([seconds for _, seconds in on_time]):
        on_time[chosen][0].give_up(CROWDED)
