"""Drafts are what followed the last tokens when they were there before."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.scheduler import ngram
from sluice_runtime.scheduler.ngram import LONGEST, NGramDrafts

from tests.examples import examples


def test_a_draft_is_what_followed() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 9, 1, 2]
    assert NGramDrafts().draft(tokens, 4) == (3, 4, 5, 6)


def test_the_last_place_counts() -> None:
    tokens = [1, 2, 7, 1, 2, 8, 1, 2]
    assert NGramDrafts().draft(tokens, 1) == (8,)


def test_more_tokens_in_common_count_before_a_later_place() -> None:
    tokens = [5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2]
    assert NGramDrafts().draft(tokens, 1) == (7,)


def test_what_was_never_there_has_no_draft() -> None:
    drafts = NGramDrafts()
    for tokens in ([], [1], [1, 1], [1, 1, 2], [1, 1, 2, 3], [1, 1, 2, 3, 1]):
        assert drafts.draft(tokens, 4) == ()


def test_a_phrase_that_repeats_is_drafted_beyond_the_end() -> None:
    assert NGramDrafts().draft([1, 2, 3, 1, 2, 3], 7) == (1, 2, 3, 1, 2, 3, 1)


def test_an_index_grows_with_the_answer() -> None:
    """Its slots are few at first, so that pairs share some; none is mistaken for another."""
    drafts, tokens = NGramDrafts(), [*range(100)]
    drafts.draft(tokens, 1)
    for token in range(100, 5000):
        tokens.append(token)
        assert drafts.draft(tokens, 1) == ()
    assert drafts.draft([*tokens, 57, 58], 2) == (59, 60)


def test_a_long_prompt_is_indexed_in_several_calls() -> None:
    tokens = list(range(3 * ngram.INDEXED_AT_ONCE))
    tokens += tokens[-100:-90]
    drafts = NGramDrafts()
    found = [len(drafts.draft(tokens, 1)) for _ in range(4)]
    assert found == [0, 0, 1, 1]


@given(seed=st.integers(0, 1000), size=st.integers(0, 120), step=st.integers(1, 9))
@examples(60)
def test_drafts_do_not_depend_on_when_tokens_were_indexed(seed: int, size: int, step: int) -> None:
    chance = random.Random(seed)
    tokens = [chance.randrange(5) for _ in range(size)]
    growing = NGramDrafts()
    for length in range(0, size, step):
        growing.draft(tokens[:length], 1)
    assert growing.draft(tokens, 3) == searched(tokens, 3)


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
