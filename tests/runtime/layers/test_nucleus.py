"""A nucleus has the mass that is wanted, not a token more, and equal logits share their fate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.layers import nucleus as module
from sluice_runtime.layers.nucleus import nucleus
from torch import Tensor

from tests.examples import examples

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
