"""One formula refuses requests and bounds admission."""

from __future__ import annotations

import pytest
from sluice_runtime.scheduler.limits import (
    Limits,
    fits_empty_pool,
    least_answer,
    max_new_tokens,
    refusal,
)


@pytest.mark.parametrize("prompt", [1, 62, 63, 64, 99, 100, 200])
@pytest.mark.parametrize("limits", [Limits(100, 64), Limits(64, 100)])
def test_refusal_and_admission_are_one_formula(limits: Limits, prompt: int) -> None:
    assert (refusal(limits, prompt) is None) == fits_empty_pool(limits, prompt)
    assert (max_new_tokens(limits, prompt) >= 1) == fits_empty_pool(limits, prompt)


@pytest.mark.parametrize("limits", [Limits(100, 64), Limits(64, 100)])
def test_a_prompt_that_is_only_scored_needs_no_place_for_an_answer(limits: Limits) -> None:
    assert refusal(limits, 64, least_answer(0)) is None
    assert refusal(limits, 65, least_answer(0)) is not None
    assert refusal(limits, 64, least_answer(1)) is not None
    assert refusal(limits, 63, least_answer(9)) is None


def test_a_refusal_says_the_numbers() -> None:
    assert "200 tokens" in (refusal(Limits(100, 64), 200) or "")
    assert "context length of 100" in (refusal(Limits(100, 64), 200) or "")
    assert "KV pool of 64" in (refusal(Limits(100, 64), 64) or "")
