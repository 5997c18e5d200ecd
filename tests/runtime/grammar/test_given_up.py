"""When a grammar is not followed to its end: it is slow, too large, or nothing may follow."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from sluice_runtime.grammar import masks as masks_module
from sluice_runtime.grammar.json_schema import usable_schema
from sluice_runtime.grammar.masks import FREE_SECONDS, GivenUp, Matchers
from sluice_runtime.grammar.vocabulary import tokenizer_of
from sluice_runtime.scheduler.batch import Batch, ForwardMode

from tests.runtime.grammar.drawing import BEYOND_LIMITS, compiled_of
from tests.runtime.grammar.masking import (
    PROMPT,
    SIZE,
    TOKENIZER,
    batch,
    behind,
    mask,
    masked,
    matchers_of,
    request,
    tokens_of,
)


class Stopwatch:
    """A thread's clock: each mask takes what `costs` says next."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self._now, self._inside = 0.0, False

    def thread_time(self) -> float:
        if self._inside:
            self._now += self.costs.pop(0) if self.costs else 0.0
        self._inside = not self._inside
        return self._now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    watch = Stopwatch()
    monkeypatch.setattr(masks_module, "time", watch)
    return watch


def step(matchers: Matchers, rows: int, answered: int) -> list[int]:
    """One step in which all rows draw an "a"; how many tokens each might have drawn."""
    logits = torch.zeros(rows, SIZE)
    mask(matchers, logits, range(rows), [len(PROMPT) + answered] * rows)
    matchers.accepting(range(rows))([ord("a")] * rows)
    return [int(count) for count in logits.isfinite().sum(1)]


def test_a_row_whose_grammar_is_slow_is_given_up_alone(clock: Stopwatch) -> None:
    matchers = matchers_of(a=1, b=1, c=1)
    allowed = step(matchers, 3, 0)[0]
    clock.costs = [0, FREE_SECONDS + 0.04, 0]
    assert step(matchers, 3, 1) == [allowed, SIZE, allowed]
    (slow,) = matchers.take_given_up(step=10**9)
    assert (slow.request_id, slow.grammar.field, slow.why.reason) == ("b", "field", "slow")
    assert "15 ms of a processor a token" in slow.why.error
    assert step(matchers, 3, 2) == [allowed, SIZE, allowed]
    assert matchers.take_given_up(step=10**9) == []


def test_a_slow_grammar_does_not_look_ahead(clock: Stopwatch) -> None:
    matchers, answer = matchers_of(one=1), tokens_of("a")
    step(matchers, 1, 0)
    assert behind(matchers, answer, answer)[1]
    matchers.accepting([0])(answer)
    clock.costs = [0.05]
    step(matchers, 1, 2)
    assert not behind(matchers, tokens_of("aaa"), answer)[1]


def test_masks_behind_drafts_count_for_looking_ahead(clock: Stopwatch) -> None:
    """Else a grammar that is cheap in every second mask would look ahead without end."""
    matchers, answer = matchers_of(one=1), tokens_of("a")
    step(matchers, 1, 0)
    clock.costs = [0, 0.05]
    assert behind(matchers, answer, answer)[1]
    assert not behind(matchers, answer, tokens_of("ab"))[1]
    assert not clock.costs
    matchers.accepting([0])(answer)
    assert not behind(matchers, tokens_of("aa"), answer)[1]


def test_an_answer_is_not_given_up_for_a_slow_mask_behind_a_draft(clock: Stopwatch) -> None:
    matchers, answer = matchers_of(one=1), tokens_of("a")
    step(matchers, 1, 0)
    clock.costs = [0, FREE_SECONDS + 1]
    assert behind(matchers, answer, answer)[1]
    assert not clock.costs
    matchers.accepting([0])(answer)
    step(matchers, 1, 2)
    assert matchers.take_given_up(step=10**9) == []


def test_a_row_whose_masks_behind_drafts_are_slow_is_given_up(clock: Stopwatch) -> None:
    """Looking ahead ends, and then each mask counts as the answer's own."""
    matchers, answered, drafts = matchers_of(one=1), 0, tokens_of("aaa")
    step(matchers, 1, 0)
    while not matchers.take_given_up(step=10**9):
        answered += 1
        assert answered < 60
        clock.costs = [0.04 * ((answered + ahead) % 4 != 1) for ahead in range(4)]
        allowed = behind(matchers, drafts[:1] * answered, drafts)
        kept = next((n for n, a in enumerate(allowed[1:]) if not a), len(drafts))
        matchers.accepting([0])(drafts[:1])
        for _ in range(kept):
            answered += 1
            matchers.accepting([0])(drafts[:1])


def test_a_row_given_up_in_a_later_step_is_not_reported_early(clock: Stopwatch) -> None:
    """What the step before it drew still counts."""
    matchers = matchers_of(one=1)
    for number in (1, 2):
        matchers.follow(Batch(number, ForwardMode.DECODE))
        clock.costs = [(FREE_SECONDS + 0.04) * (number - 1)]
        step(matchers, 1, number - 1)
    assert matchers.take_given_up(step=1) == []
    assert [slow.request_id for slow in matchers.take_given_up(step=2)] == ["one"]


def test_a_row_is_given_up_for_its_mean_and_not_for_one_slow_token(clock: Stopwatch) -> None:
    matchers, answered = matchers_of(one=1), 0
    for cost in (0.049, *[0.014] * 40):
        clock.costs = [cost]
        step(matchers, 1, answered)
        answered += 1
        assert matchers.take_given_up(step=10**9) == []
    while not matchers.take_given_up(step=10**9):
        clock.costs = [0.03]
        step(matchers, 1, answered)
        answered += 1
        assert answered < 60


def test_what_reaches_a_limit_of_the_library_is_given_up() -> None:
    matchers = Matchers(SIZE)
    text = 'root ::= "a"{3} s\n' + BEYOND_LIMITS
    matchers.open(request("r"), compiled_of("ebnf", text, TOKENIZER))
    matchers.follow(batch([(0, "r")]))
    answered = 0
    while not (given_up := matchers.take_given_up(step=10**9)):
        masked(matchers, 0, answered)
        matchers.accepting([0])([ord("a")])
        answered += 1
        assert answered < 10
    assert given_up[0].why.reason == "slow"
    assert "write it without repeats within repeats" in given_up[0].why.error


def long_string(tokens: int, max_length: int) -> Sequence[GivenUp]:
    """An answer of so many tokens in a string of a bounded length, and how it ended."""
    text = json.dumps(usable_schema({"type": "string", "maxLength": max_length}))
    matchers = Matchers(SIZE)
    matchers.open(request("r"), compiled_of("json_schema", text, TOKENIZER))
    matchers.follow(batch([(0, "r")]))
    answer = [ord('"'), *[ord("a")] * tokens]
    for answered, token in enumerate(answer):
        masks = matchers.masks([0], [len(PROMPT) + answered])
        if given_up := matchers.take_given_up(step=1):
            return given_up
        assert masks is not None
        assert masks.words[0, token // 32] >> token % 32 & 1
        matchers.accepting([0])([token])
    return []


def test_a_string_of_a_bounded_length_may_be_as_long_as_it_says() -> None:
    """Far more states than the library's limit; each mask makes several."""
    assert long_string(4000, 4000) == []


def test_an_answer_that_alone_takes_too_many_states_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a new matcher would not help for long."""
    monkeypatch.setattr(masks_module, "MIN_RENEWED_TOKENS", 3000)
    (given_up,) = long_string(6000, 8000)
    assert given_up.why.reason == "slow"
    assert "too many states" in given_up.why.error
    assert "maxLength" in given_up.why.error


@pytest.mark.parametrize("pattern", [r"a[^\s\S]b", "é"])
def test_where_nothing_may_follow_the_answer_is_given_up(pattern: str) -> None:
    """By the library, or since no token of the vocabulary fits."""
    tokens = [bytes([value]) for value in range(128)]
    matchers = Matchers(len(tokens))
    matchers.open(request("r"), compiled_of("regex", pattern, tokenizer_of(tokens)))
    matchers.follow(batch([(0, "r")]))
    masks = matchers.masks([0], [len(PROMPT)])
    assert masks is not None
    assert (masks.words == -1).all()
    (stuck,) = matchers.take_given_up(step=1)
    assert stuck.why.reason == "stuck"
