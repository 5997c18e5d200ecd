"""Drafts are what followed the last tokens when they were there before."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.scheduler import ngram
from sluice_runtime.scheduler.ngram import LONGEST, NGramDrafts, NGramIndex

from tests.examples import examples


def draft(tokens: list[int], count: int, drafts: NGramDrafts | None = None) -> tuple[int, ...]:
    drafts = drafts or NGramDrafts()
    drafts.index(tokens, len(tokens))
    return drafts.draft(tokens, count)


def test_a_draft_is_what_followed() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 9, 1, 2]
    assert draft(tokens, 4) == (3, 4, 5, 6)


def test_the_last_place_counts() -> None:
    tokens = [1, 2, 7, 1, 2, 8, 1, 2]
    assert draft(tokens, 1) == (8,)


def test_more_tokens_in_common_count_before_a_later_place() -> None:
    tokens = [5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2]
    assert draft(tokens, 1) == (7,)


def test_what_was_never_there_has_no_draft() -> None:
    drafts = NGramDrafts()
    for tokens in ([], [1], [1, 1], [1, 1, 2], [1, 1, 2, 3], [1, 1, 2, 3, 1]):
        assert draft(tokens, 4, drafts) == ()


def test_a_phrase_that_repeats_is_drafted_beyond_the_end() -> None:
    assert draft([1, 2, 3, 1, 2, 3], 7) == (1, 2, 3, 1, 2, 3, 1)


def test_an_index_grows_with_the_answer() -> None:
    """Its slots are few, so that pairs share some; none is mistaken for another."""
    drafts, tokens = NGramDrafts(), [*range(100)]
    for token in range(100, 5000):
        tokens.append(token)
        assert draft(tokens, 1, drafts) == ()
    assert draft([*tokens, 57, 58], 2, drafts) == (59, 60)


def test_a_long_answer_has_few_stretches_to_look_up() -> None:
    drafts, tokens = NGramDrafts(), [*range(300)]
    drafts.index(tokens, 300)
    for _ in range(20):
        tokens += range(len(tokens), len(tokens) + 1000)
        drafts.index(tokens, 1000)
    assert len(drafts._stretches) <= 5


def test_pairs_that_are_only_alike_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    in_common = ngram._in_common

    def counted(tokens: Sequence[int], place: int) -> int:
        compared.append(place)
        return in_common(tokens, place)

    monkeypatch.setattr(ngram, "_in_common", counted)
    drafts, tokens = NGramDrafts(), [*range(2000)]
    for token in range(2000, 2900):
        tokens.append(token)
        draft(tokens, 1, drafts)
    assert not compared
    draft([*tokens, 57, 58], 1, drafts)
    assert compared == [59]


def test_a_long_prompt_is_indexed_in_several_calls_from_its_end() -> None:
    tokens = list(range(3000))
    drafts = NGramDrafts()
    steps = [drafts.index(tokens, 500) for _ in range(8)]
    assert sum(steps) == 2998
    assert max(steps) == 500
    assert steps[-1] == 0


def test_an_answer_is_indexed_before_the_rest_of_its_prompt() -> None:
    prompt, drafts = list(range(3000)), NGramDrafts()
    drafts.index(prompt, 8)
    answer = [5001, 5002, 5003, 5004]
    assert drafts.index([*prompt, *answer], len(answer)) == len(answer)
    assert drafts.draft([*prompt, *answer, 5001, 5002], 1) == (5003,)


def test_an_index_is_shared_by_those_who_have_its_beginning_in_common() -> None:
    """One request knows the stretch to its end, the other only half of it."""
    index = NGramIndex(0, 400)
    whole, half = list(range(400)), [*range(200), *range(1000, 1100)]
    first, second = NGramDrafts([(index, 400)]), NGramDrafts([(index, 200)])
    assert second.index(half, 10_000) == 198 + 100
    assert first.index(whole, 10_000) == 200, "what the other has indexed is there"
    assert draft([*whole, 300, 301], 1, first) == (302,)
    assert draft([*half, 150, 151], 1, second) == (152,)
    assert draft([*half, 300, 301], 1, second) == (), "tokens of the other"


@given(seed=st.integers(0, 1000), size=st.integers(0, 120), step=st.integers(1, 9))
@examples(60)
def test_drafts_do_not_depend_on_when_tokens_were_indexed(seed: int, size: int, step: int) -> None:
    chance = random.Random(seed)
    tokens = [chance.randrange(5) for _ in range(size)]
    growing = NGramDrafts()
    for length in range(0, size, step):
        draft(tokens[:length], 1, growing)
    assert draft(tokens, 3, growing) == searched(tokens, 3)


def searched(tokens: list[int], count: int) -> tuple[int, ...]:
    """The same by looking through all of them."""
    size = len(tokens)
    for length in range(LONGEST, 1, -1):
        end = tokens[size - length :]
        for place in range(size - 1, length - 1, -1):
            if tokens[place - length : place] == end:
                followed = tokens[place:] * count
                return tuple(followed[:count])
    return ()
