"""Draws follow the distribution, the restrictions, and (seed, position) alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sluice_runtime.engine.sampling.draw import SamplingRows, restrict, sample, uniform
from sluice_runtime.scheduler.batch import NO_TOKEN

from tests.runtime.engine.sampling.parameters import rows_of

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0, 0.5])


def rows(count: int, vocabulary: int = len(LOGITS), **parameters: Any) -> SamplingRows:
    return rows_of(count, vocabulary, **parameters)


def shares(count: int, logits: torch.Tensor = LOGITS, **parameters: Any) -> torch.Tensor:
    tokens = sample(logits.expand(count, -1).clone(), rows(count, len(logits), **parameters))
    return torch.bincount(tokens, minlength=len(logits)) / count


def test_temperature_0_is_greedy() -> None:
    assert sample(LOGITS[None], rows(1, temperature=0.0)).tolist() == [1]


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("restricted", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}])
def test_a_tiny_temperature_is_greedy_whatever_the_logits(
    temperature: float, restricted: dict[str, Any]
) -> None:
    for logits in (LOGITS, LOGITS * 1e4, LOGITS - 1e4, LOGITS * 1e30):
        parameters = rows(3, temperature=temperature, **restricted)
        assert sample(logits.expand(3, -1).clone(), parameters).tolist() == [1, 1, 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("restricted", [{}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}])
def test_a_row_without_a_distribution_gets_no_token_and_does_not_affect_others(
    value: float, temperature: float, restricted: dict[str, float]
) -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(2))
    parameters = rows(4, 50, temperature=temperature, **restricted)
    undisturbed = sample(logits.clone(), parameters)
    logits[1, 7] = value
    logits[2] = float("-inf")
    wanted = [int(undisturbed[0]), NO_TOKEN, NO_TOKEN, int(undisturbed[3])]
    assert sample(logits, parameters).tolist() == wanted


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_shares_follow_the_softmax(temperature: float) -> None:
    wanted = torch.softmax(LOGITS / temperature, -1)
    assert torch.allclose(shares(10_000, temperature=temperature), wanted, atol=0.02)


def test_top_k_keeps_the_most_probable() -> None:
    wanted = torch.softmax(LOGITS, -1)
    wanted[[0, 3, 4]] = 0
    got = shares(20_000, top_k=2)
    assert torch.allclose(got, wanted / wanted.sum(), atol=0.015)


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    probabilities = torch.softmax(LOGITS, -1)
    top = (probabilities[1] + probabilities[2]).item()
    for top_p, kept in ((top - 0.01, {1, 2}), (top + 0.01, {0, 1, 2}), (1e-9, {1})):
        got = shares(5_000, top_p=top_p)
        assert set(got.nonzero().flatten().tolist()) == kept


def test_top_k_applies_before_top_p() -> None:
    """Of the two kept by top_k, the first holds 0.73 of what is left."""
    assert shares(2_000, top_k=2, top_p=0.7)[1] == 1.0


def test_min_p_keeps_tokens_close_to_the_most_probable() -> None:
    shares_of_best = torch.softmax(LOGITS, -1) / torch.softmax(LOGITS, -1).max()
    for min_p, kept in ((0.3, {1, 2}), (0.1, {0, 1, 2}), (1.0, {1})):
        assert set((shares_of_best >= min_p).nonzero().flatten().tolist()) == kept
        got = shares(5_000, min_p=min_p)
        assert set(got.nonzero().flatten().tolist()) == kept


def test_a_wide_nucleus_is_found_too() -> None:
    """Beyond the tokens that are looked at first, in one row of two."""
    logits = torch.linspace(1, 0, 5000).expand(2, -1).clone()
    logits[0, 0] = 100.0
    restrictions = rows(2, 5000, top_p=0.99).restrictions
    assert restrictions is not None
    restrict(logits, restrictions)
    kept = logits.isfinite()
    probabilities = torch.softmax(torch.linspace(1, 0, 5000), -1).double()
    wanted = int((probabilities.cumsum(-1) < 0.99).sum()) + 1
    assert 4000 < wanted < 5000
    assert kept.sum(-1).tolist() == [1, wanted]


def test_equal_logits_stay_or_go_together() -> None:
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0])
    assert set(shares(2_000, logits, top_k=2).nonzero().flatten().tolist()) == {0, 1, 2, 3}


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(1))
    all_at_once = sample(logits, rows(64, 300))
    for index in (0, 17, 63):
        alone = rows(1, 300, position=[index])
        assert sample(logits[index : index + 1], alone) == all_at_once[index]
    assert not torch.equal(sample(logits, rows(64, 300, seed=6)), all_at_once)


def test_rows_with_different_parameters_share_a_batch() -> None:
    mixed = rows(
        3,
        temperature=[0.0, 1.0, 1.0],
        seed=[1, 2, 3],
        position=[4, 5, 6],
        top_p=[1.0, 1.0, 1e-9],
    )
    tokens = sample(LOGITS.expand(3, -1).clone(), mixed)
    assert tokens[0] == tokens[2] == 1


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")])
    assert set(shares(2_000, logits).nonzero().flatten().tolist()) == {1, 3}


def test_uniform_is_uniform_and_independent_for_neighbours() -> None:
    numbers = torch.from_numpy(uniform(np.arange(50_000) // 250, np.arange(50_000) % 250))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = torch.histc(numbers.float(), 20, 0, 1)
    assert ((counts - 2500).abs() < 250).all()
    assert len(numbers.unique()) == 50_000


def test_the_values_of_uniform_never_change() -> None:
    """Changing these would change what a seed gives a client."""
    extremes = np.array([0, 1, 2**63 - 1])
    got = uniform(extremes, np.array([0, 7, 4096])).tolist()
    assert got == [0.28176129772258496, 0.7811858256068281, 0.1977953389442867]
