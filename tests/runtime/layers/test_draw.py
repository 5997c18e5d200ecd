"""Tokens are those of the running sum over the whole distribution, however they are found. A
nucleus has the mass that is asked for, not a token more, and equal logits share their fate.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sluice_kernels import reference
from sluice_runtime.layers import draw as module
from sluice_runtime.layers.draw import GREEDY_BELOW, Draws, draw, nucleus
from sluice_runtime.scheduler.batch import NO_TOKEN
from torch import Tensor

from tests.examples import examples

ROWS = 64


@pytest.mark.parametrize("vocabulary", [1, 5, 255, 256, 257, 512, 1000, 20_001])
@pytest.mark.parametrize("greedy", [0, 1, 2, 3], ids=["none", "all", "some", "all but one"])
def test_a_draw_is_the_inverse_of_the_running_sum(vocabulary: int, greedy: int) -> None:
    """In the order of token ids, also where most tokens are left out."""
    seeded = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(ROWS, vocabulary, generator=seeded) * 4
    logits[::2] = logits[::2].where(
        logits[::2] >= logits[::2].amax(-1, keepdim=True) - 3, -torch.inf
    )
    temperatures = torch.rand(ROWS, generator=seeded) * 2 + 0.1
    uniforms = torch.rand(ROWS, generator=seeded, dtype=torch.float64)
    uniforms[:2], uniforms[2:4] = 0.0, 1 - 2.0**-53
    temperatures[(slice(0), slice(None), slice(None, None, 3), slice(1, None))[greedy]] = 0.0
    places = (temperatures >= GREEDY_BELOW).nonzero().squeeze(1)
    draws = Draws(temperatures, uniforms, None if len(places) == ROWS else places)
    got = draw(logits, draws if len(places) else None)
    assert got.tolist() == reference.draw(logits, temperatures, uniforms, GREEDY_BELOW).tolist()


@pytest.mark.parametrize("some", [False, True], ids=["all drawn", "some drawn"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_without_a_distribution_has_no_token(value: float, some: bool) -> None:
    logits = torch.randn(4, 700, generator=torch.Generator().manual_seed(1))
    draws = Draws(torch.ones(4), torch.full((4,), 0.5), torch.tensor([1, 2]) if some else None)
    wanted = draw(logits, draws)
    logits[1:3] = value
    wanted[1:3] = NO_TOKEN
    assert torch.equal(draw(logits, draws), wanted)


ROUNDING = 1e-5


def logits_of(rows: int, vocabulary: int, seed: int) -> Tensor:
    """Some are equal."""
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3
    return (logits * 8).round() / 8


@given(
    vocabulary=st.sampled_from([1, 7, 300, 1500]),
    temperature=st.sampled_from([1e-5, 0.3, 1.0, 5.0]),
    top_p=st.sampled_from([1e-9, 0.3, 0.9, 0.9999]),
    seed=st.integers(0, 10_000),
)
@examples(60)
def test_it_holds_the_mass_with_the_fewest_logits(
    vocabulary: int, temperature: float, top_p: float, seed: int
) -> None:
    logits = logits_of(4, vocabulary, seed)
    least = nucleus(logits, torch.full((4,), temperature), torch.full((4,), top_p))
    shares = torch.softmax(logits.double() / temperature, -1)
    held = torch.where(logits >= least[:, None], shares, 0).sum(-1)
    without = torch.where(logits > least[:, None], shares, 0).sum(-1)
    assert (held >= top_p - ROUNDING).all()
    assert (without < top_p + ROUNDING).all()
    assert (logits == least[:, None]).any(-1).all()


@pytest.mark.parametrize("trial_tokens", [1, 40, 5000])
def test_how_many_tokens_are_looked_at_first_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch, trial_tokens: int
) -> None:
    """The last of them is all, as on a device that the host does not wait for."""
    rows = logits_of(6, 3000, 1), torch.ones(6), torch.tensor([0.1, 0.5, 0.7, 0.9, 0.99, 1 - 1e-6])
    wanted = nucleus(*rows)
    monkeypatch.setattr(module, "_TRIAL_TOKENS", trial_tokens)
    assert torch.equal(nucleus(*rows), wanted)
