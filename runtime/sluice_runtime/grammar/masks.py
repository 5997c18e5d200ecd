"""Moves answers through their grammars, and masks the next token of each. Imports no torch.

While a device computes a step, the engine's thread follows the rows that have a grammar. The
library's calls run in parallel in a few threads, without the interpreter's lock, and are
bounded by its own limits. Knows requests by their messages, and no logits.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask
from numpy.typing import NDArray

from sluice_runtime.errors import GrammarUnavailableError
from sluice_runtime.grammar.constraint import (
    LIBRARY_FAILED,
    CompiledGrammar,
    first_line,
    with_deep_stack,
)
from sluice_runtime.scheduler.batch import NO_TOKEN, Batch
from sluice_runtime.wire.messages import Generate, Grammar

MAX_MEAN_SECONDS: Final = 0.015
"""Most mean processor time for each token of an answer; ordinary schemas take 0.1 to 0.5 ms."""
FREE_SECONDS: Final = 0.05
"""Processor time that an answer may take in addition to the mean for its tokens."""
AHEAD_SECONDS: Final = 0.003
"""Most mean processor time for masks of an answer that may have drafts. If masks take more, none is
computed ahead, so that all time counts for the answer itself."""
AHEAD_FREE_TOKENS: Final = 10
MIN_RENEWED_TOKENS: Final = 50
MIN_RENEWED_SHARE: Final = 1 / 8
"""Share of an answer's tokens, and MIN_RENEWED_TOKENS their number, that must have come since its
matcher was made before it is made again. Compiling an ordinary grammar takes 2 to 40 ms of the
step; reading an answer again takes up to 16 ms for 1,000 tokens."""
_WORD_BITS: Final = 32
_BITS: Final = np.left_shift(np.uint32(1), np.arange(_WORD_BITS, dtype=np.uint32)).view(np.int32)
_SIMPLER: Final = "; write it without repeats within repeats such as (a{0,60}){0,60}"
_SHORTER: Final = "; ask for shorter answers, or for strings of a smaller maxLength or of none"

SlowReason = Literal["slow", "stuck", "failed"]


class GiveUp(NamedTuple):
    """Reason why an answer's grammar is given up. The request is at fault unless `reason` is
    `failed`."""

    reason: SlowReason
    error: str


SLOW: Final = GiveUp(
    "slow",
    f"following it takes more than {MAX_MEAN_SECONDS * 1e3:g} ms of a processor a token" + _SIMPLER,
)
STUCK: Final = GiveUp(
    "stuck",
    "no token may follow what was drawn, and the answer is not complete; allowed: a grammar of "
    "which every beginning can be completed",
)
REFUSED: Final = GiveUp(
    "stuck",
    "the answer to go on from does not follow it; allowed: one that was drawn with this grammar",
)
FAILED: Final = GiveUp("failed", LIBRARY_FAILED)
_MANY_STATES_SAID: Final = "too many states"
"""Part of the library's message about a long answer, or a grammar with many patterns."""
_LIMIT_SAID: Final = (
    "too many expressions constructed",
    "Too many items",
    "items; max is",
    "fuel exhausted",
)
"""Parts of the library's messages about an answer that reaches a limit of the library."""
_DEAD_END_SAID: Final = (
    "NoExtension",
    "doesn't satisfy the grammar",
    "parser stopped in consume_token",
)
"""Parts of the library's messages when no token may follow, or when a token that another engine
drew may not."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GivenUp:
    """A request that ends because its grammar was given up."""

    request_id: str
    grammar: Grammar
    why: GiveUp


@dataclass(frozen=True)
class Masks:
    """Masks of k rows of a step."""

    places: Sequence[int]
    """Places [k] among the step's rows."""
    words: NDArray[np.int32]
    """Bits [k, vocabulary / 32]: one for each token that is allowed, the lowest first."""


class Matcher:
    """One answer and its grammar. The grammar is compiled for this answer alone, because copies
    share the states that the library counts. A mask creates 5 or 6 states for each byte of a string
    with bounded length, and each token read creates one for each byte. When there are too many
    states, a new matcher reads the answer again. `end`: id of the token that ends answers in the
    grammar, after the vocabulary.

    The matcher may look ahead of the answer, at drafts. Errors there are not the answer's fault, so
    its grammar is never given up for them.
    """

    def __init__(self, compiled: CompiledGrammar, end: int, message: Generate) -> None:
        assert message.grammar is not None
        self._compile = compiled.compile
        self._end = end
        self._request_id = message.request_id
        self.grammar = message.grammar
        self._prompt_tokens = len(message.prompt_ids)
        self._stops = message.stop_token_ids
        self._tokens = list(message.generated_ids)
        """Tokens of the answer, as drawn so far."""
        self._resumed = bool(message.generated_ids)
        """Whether its first tokens come from outside, and may be any."""
        self._state = compiled.matcher
        self._made_at = 0
        """Number of the answer's tokens when the state was made."""
        self._taken = 0
        """Number of tokens that the state has taken in."""
        self._ahead: list[int] = []
        """Drafts that the state includes after these tokens."""
        self._saw_drafts = False
        """Whether the state has seen drafts since it was made."""
        self._looks_ahead = True
        self._ended = False
        self._masks: dict[int, NDArray[np.int32]] = {}
        """Precomputed masks, keyed by the number of accepted tokens ahead of each."""
        self._seconds = self._turns = 0.0
        """Processor time of the answer's own masks; `_turns` is their number."""
        self._seconds_ahead = self._turns_ahead = 0.0
        """Processor time of the masks behind drafts; `_turns_ahead` is their number."""
        self.given_up: GivenUp | None = None

    def accept(self, token: int) -> None:
        """Adds the token that was drawn with the last mask; the next mask reads it. After drafts
        all drawn tokens are added; the next mask removes the ones that were not kept."""
        self._tokens.append(token)

    def fill(self, context_tokens: int, words: NDArray[np.int32]) -> None:
        """Writes the mask for the token after the row's first `context_tokens` tokens. The mask
        allows all tokens once the answer has ended or its grammar was given up."""
        assert self.given_up is None
        began = time.thread_time()
        answered = context_tokens - self._prompt_tokens
        assert answered <= len(self._tokens), "a token was drawn behind the matcher's back"
        del self._tokens[answered:]
        why = self._settle(answered)
        replays = answered - self._taken > 1
        why = why or self._fill(answered, words)
        if not replays:
            self._turns += 1
            self._seconds += time.thread_time() - began
            if self._seconds > FREE_SECONDS + MAX_MEAN_SECONDS * self._turns:
                why = why or SLOW
        if why is not None:
            self.given_up = GivenUp(self._request_id, self.grammar, why)
            words[:] = -1

    def fill_behind(self, drafts: Sequence[int], words: NDArray[np.int32]) -> None:
        """Writes the mask for the token after the answer and `drafts`; call `fill` first. If the
        grammar forbids a draft, or the mask is unknown, the mask allows no token, so that nothing
        is drawn."""
        words[:] = 0
        if self.given_up or self._is_slow_ahead() or not self._looks_ahead:
            return
        began = time.thread_time()
        self._saw_drafts = True
        self._fill_behind(drafts, words)
        self._turns_ahead += 1
        self._seconds_ahead += time.thread_time() - began

    def _is_slow_ahead(self) -> bool:
        """Whether masks ahead are too slow, judged by the time of all masks, since only those after
        drafts may be slow."""
        turns = self._turns + self._turns_ahead + AHEAD_FREE_TOKENS
        return self._seconds + self._seconds_ahead > AHEAD_SECONDS * turns

    def _fill_behind(self, drafts: Sequence[int], words: NDArray[np.int32]) -> None:
        pairs = zip(self._ahead, drafts, strict=False)
        same = next((i for i, (own, draft) in enumerate(pairs) if own != draft), len(drafts))
        same = min(same, len(self._ahead))
        if same < len(drafts):
            self._go_back(len(self._ahead) - same)
            del self._ahead[same:]
        for token in drafts[same:]:
            if self._ended:
                words[:] = -1
                return
            if not self._may_take(token):
                return
            self._ahead.append(token)
        if self._mask(self._taken + len(drafts), words):
            words[:] = 0

    def _fill(self, answered: int, words: NDArray[np.int32]) -> GiveUp | None:
        why = self._follow(answered, words)
        if why is None or _MANY_STATES_SAID not in self._state.get_error():
            return why
        if not self._is_old(answered):
            if not self._saw_drafts:
                return why
            self._looks_ahead = False  # drafts may have created most of the states
        return self._renew(answered) or self._follow(answered, words)

    def _is_old(self, answered: int) -> bool:
        """Whether the answer has grown enough since the state was made to be worth a new state."""
        least = max(MIN_RENEWED_TOKENS, MIN_RENEWED_SHARE * answered)
        return answered - self._made_at >= least

    def _renew(self, answered: int) -> GiveUp | None:
        """Replaces the state by a new matcher, which has read nothing yet."""
        del self._state  # two at once would take twice the memory
        try:
            self._state, seconds = with_deep_stack(lambda: _timed(self._compile))
        except GrammarUnavailableError:
            return FAILED
        self._made_at, self._taken = answered, 0
        self._ahead, self._masks, self._ended, self._saw_drafts = [], {}, False, False
        self._seconds += seconds
        return None

    def _settle(self, answered: int) -> GiveUp | None:
        """Moves kept drafts to the answer, and takes back read tokens that are not part of it."""
        if self._saw_drafts and self._state.is_error():
            self._looks_ahead = self._is_old(answered)
            return self._renew(answered)
        while self._ahead and self._tokens[self._taken : self._taken + 1] == self._ahead[:1]:
            del self._ahead[0]
            self._taken += 1
        if self._taken != answered:
            self._forget_drafts()
        if self._taken > answered:  # drawn in a step without memory
            self._go_back(self._taken - answered)
            self._taken = answered
        self._masks = {count: mask for count, mask in self._masks.items() if count >= answered}
        return None

    def _forget_drafts(self) -> None:
        self._go_back(len(self._ahead))
        self._ahead = []

    def _go_back(self, tokens: int) -> None:
        """Takes back the last `tokens` tokens that the state has read."""
        if not tokens:
            return
        self._masks = {
            count: mask
            for count, mask in self._masks.items()
            if count <= self._taken + len(self._ahead) - tokens
        }
        taken = tokens - self._ended
        self._ended = False
        if taken:
            self._state.rollback(taken)

    def _follow(self, answered: int, words: NDArray[np.int32]) -> GiveUp | None:
        words[:] = -1
        for token in self._tokens[self._taken : answered]:
            if self._ended or token == NO_TOKEN:
                return None
            if why := self._take(token):
                return REFUSED if self._resumed and why is STUCK else why
            self._taken += 1
        if answered not in self._masks:
            self._forget_drafts()
        return self._mask(answered, words)

    def _mask(self, answered: int, words: NDArray[np.int32]) -> GiveUp | None:
        """Writes the mask for the token after the `answered` tokens that the state has read."""
        if (mask := self._masks.get(answered)) is not None:
            words[:] = mask
            return None
        words[:] = -1
        if self._ended:
            return None
        may_end = self._state.is_accepting()
        fill_next_token_bitmask(self._state, words[None])
        if self._state.is_error():
            return self._failure()
        self._end_with(words, may_end=may_end)
        if not words.any():
            return STUCK
        if self.grammar.ends_late:
            _forbid(words, self.grammar.end_token_ids)
        if answered < self.grammar.min_tokens:
            _forbid(words, self._stops)
        self._masks[answered] = words.copy()
        return None

    def _take(self, token: int) -> GiveUp | None:
        if token in self.grammar.end_token_ids and self._state.is_accepting():
            self._ended = True
        elif not self._state.consume_token(token):
            return self._failure()
        return None

    def _may_take(self, token: int) -> bool:
        """Reads a draft if the grammar allows it; reading a forbidden one would break the state."""
        ends = token in self.grammar.end_token_ids and self._state.is_accepting()
        return (ends or self._state.validate_tokens([token]) == 1) and self._take(token) is None

    def _failure(self) -> GiveUp:
        """Reason to give up the grammar, from the library's error."""
        error = first_line(self._state.get_error())
        if _MANY_STATES_SAID in error:
            return GiveUp("slow", f"following it takes too much ({error}){_SHORTER}")
        if any(said in error for said in _LIMIT_SAID):
            return GiveUp("slow", f"following it takes too much ({error}){_SIMPLER}")
        if any(said in error for said in _DEAD_END_SAID):
            return STUCK
        _log.error("the grammar library failed: %s", error)
        return FAILED

    def _end_with(self, words: NDArray[np.int32], *, may_end: bool) -> None:
        """Allows the model's end tokens in place of the library's. Elsewhere they are forbidden:
        some have text that a string could hold, and drawing one there would cut the answer off."""
        words[self._end // _WORD_BITS] &= ~_BITS[self._end % _WORD_BITS]
        if not may_end:
            _forbid(words, self.grammar.end_token_ids)
        else:
            for token in self.grammar.end_token_ids:
                words[token // _WORD_BITS] |= _BITS[token % _WORD_BITS]


def _timed(compile_: Callable[[], LLMatcher]) -> tuple[LLMatcher, float]:
    """A new matcher, and the processor seconds that making it took."""
    began = time.thread_time()
    return compile_(), time.thread_time() - began


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _forbid(words: NDArray[np.int32], tokens: Iterable[int]) -> None:
    """Removes tokens from a mask, unless no token would be left."""
    left = words.copy()
    for token in tokens:
        left[token // _WORD_BITS] &= ~_BITS[token % _WORD_BITS]
    if left.any():
        words[:] = left


class Matchers:
    """Matchers by request, and by running row. `threads`: most threads that fill masks."""

    def __init__(self, vocabulary_size: int, threads: int = 1) -> None:
        self._words = -(-(vocabulary_size + 1) // _WORD_BITS)
        self._end = vocabulary_size
        self._threads = ThreadPoolExecutor(threads, "masks") if threads > 1 else None
        self._given_up: deque[tuple[int, GivenUp]] = deque()
        """Requests whose grammar was given up, with the step in which that happened."""
        self._step = 0
        self.used = False
        """Whether a request has had a grammar; until then no step has to call anything here."""
        self._requests: dict[str, Matcher] = {}
        self._rows: dict[int, Matcher] = {}

    def open(self, message: Generate, compiled: CompiledGrammar) -> None:
        """Adds a matcher for a request, before it joins the scheduler."""
        self.used = True
        self._requests[message.request_id] = Matcher(compiled, self._end, message)

    def resumed(self, request_id: str, token: int) -> None:
        """Adds the first token of a request, drawn by another engine. No step knows the request
        yet."""
        if matcher := self._requests.get(request_id):
            matcher.accept(token)

    def close(self, request_id: str) -> None:
        """Removes a request that has ended, even if its row is in one more step; unknown ids are
        ignored."""
        self._requests.pop(request_id, None)

    def follow(self, batch: Batch) -> None:
        """Applies the rows that a batch drops and adds."""
        self._step = batch.step
        for row in batch.dropped_rows:
            self._rows.pop(row, None)
        for added in batch.added_rows:
            if matcher := self._requests.get(added.request_id):
                self._rows[added.row] = matcher

    def follows(self, rows: Sequence[int]) -> bool:
        """Whether one of the rows has a grammar, so that its mask needs all earlier tokens."""
        return any(row in self._rows for row in rows)

    def masks(
        self,
        rows: Sequence[int],
        context_tokens: Sequence[int],
        drafts: Sequence[Sequence[int]] | None = None,
    ) -> Masks | None:
        """Masks for the rows that follow a grammar, each after its number of `context_tokens`;
        None: no row does. `drafts`: by place in `rows`, the drafts at the end of these tokens. A
        row may occur several times, with more drafts each time."""
        if not self._rows:
            return None
        rows_matched = [(place, self._rows.get(row)) for place, row in enumerate(rows)]
        matched = [(place, m) for place, m in rows_matched if m is not None and not m.given_up]
        if not matched:
            return None
        words = np.empty((len(matched), self._words), np.int32)
        calls: dict[Matcher, list[Callable[[], None]]] = {}
        for number, (place, matcher) in enumerate(matched):
            if drafts and drafts[place]:
                call = partial(matcher.fill_behind, drafts[place], words[number])
            else:
                call = partial(matcher.fill, context_tokens[place], words[number])
            calls.setdefault(matcher, []).append(call)
        run = self._threads.map if self._threads and len(calls) > 1 else map
        for _ in run(_call_all, calls.values()):
            pass
        self._given_up += [(self._step, matcher.given_up) for matcher in calls if matcher.given_up]
        return Masks([place for place, _ in matched], words)

    def accepting(self, rows: Sequence[int]) -> Callable[[Sequence[int]], None]:
        """Function that gives a step's drawn tokens, in the order of `rows`, to the rows' matchers.
        It looks the matchers up now, because the next step may drop rows before the tokens are
        known."""
        matched = [(place, self._rows[row]) for place, row in enumerate(rows) if row in self._rows]

        def accept(tokens: Sequence[int]) -> None:
            for place, matcher in matched:
                matcher.accept(tokens[place])

        return accept

    def take_given_up(self, step: int) -> list[GivenUp]:
        """Requests given up in `step` or before it, since the last call; may be called from any
        thread. Requests given up in a later step stay, because their tokens of `step` still
        count."""
        taken = []
        while self._given_up and self._given_up[0][0] <= step:
            taken.append(self._given_up.popleft()[1])
        return taken
