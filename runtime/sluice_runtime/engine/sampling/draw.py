"""Draws the next token of each row from its logits.

A row whose logits are no numbers gets NO_TOKEN and disturbs no other. Knows no request, and nothing
of what was drawn before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import torch
from torch import Tensor

from sluice_runtime.engine.sampling.randomness import uniform
from sluice_runtime.engine.sampling.restriction import restrict
from sluice_runtime.scheduler.batch import NO_TOKEN

GREEDY_BELOW: Final = 1e-5
"""Temperature under which the most probable token is taken: softmax would give it all the mass."""


@dataclass(frozen=True)
class SamplingRows:
    """Parameters of m rows, [m] each."""

    temperature: Tensor
    """Below GREEDY_BELOW: greedy."""
    top_p: Tensor
    top_k: Tensor
    """Below 1: all tokens."""
    min_p: Tensor
    seed: Tensor
    position: Tensor
    """Of the token to be drawn."""

    def take(self, chosen: Tensor) -> SamplingRows:
        """These rows of it."""
        return SamplingRows(*(getattr(self, field.name)[chosen] for field in fields(self)))


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """logits: [m, vocabulary], float32 → [m] token ids, NO_TOKEN where no distribution is."""
    peaks, tokens = logits.max(-1)
    finite = peaks.isfinite()
    tokens[~finite] = NO_TOKEN
    drawn = ((rows.temperature >= GREEDY_BELOW) & finite).nonzero().squeeze(1)
    if len(drawn):
        chosen = rows.take(drawn)
        kept = restrict(logits[drawn], chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p)
        tokens[drawn] = draw(kept, chosen.temperature, uniform(chosen.seed, chosen.position))
    return tokens


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse of the cumulative distribution of softmax(logits / temperature), in the order of
    token ids: [m, v], [m], [m] → [m]."""
    # The largest logit is 0 before the division, so that no quotient exceeds it.
    below = logits - logits.amax(-1, keepdim=True)
    probabilities = torch.softmax(below / temperatures[:, None], dim=-1)
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    mass = cumulative[:, -1:]
    # Rounding must not put the target at the end of the range, where no token is.
    targets = torch.minimum(uniforms[:, None] * mass, torch.nextafter(mass, torch.zeros_like(mass)))
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1)
