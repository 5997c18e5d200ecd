"""Tokens are those of the running sum over the whole distribution, however they are found."""

from __future__ import annotations

import pytest
import torch
from sluice_kernels import reference
from sluice_runtime.layers.draw import GREEDY_BELOW, Draws, draw
from sluice_runtime.scheduler.batch import NO_TOKEN

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
