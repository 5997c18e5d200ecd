"""One token a row from its logits. Knows no request."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sluice_runtime.scheduler.batch import NO_TOKEN

GREEDY_BELOW: Final = 1e-5
"""Temperature under which the most probable token is taken: softmax would give it all the mass."""


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """logits: [m, v] float32; temperatures: [m]; uniforms: [m] float64 in [0, 1) → [m].

    Below GREEDY_BELOW the first of the most probable tokens; NO_TOKEN for a row whose largest logit
    is not finite, since it has no distribution.
    """
    peaks, tokens = logits.max(-1)
    finite = peaks.isfinite()
    tokens[~finite] = NO_TOKEN
    drawn = ((temperatures >= GREEDY_BELOW) & finite).nonzero().squeeze(1)
    if len(drawn):
        tokens[drawn] = _from_distribution(logits[drawn], temperatures[drawn], uniforms[drawn])
    return tokens


def _from_distribution(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse of the cumulative distribution of softmax(logits / temperature), in the order of
    token ids."""
    # The largest logit is 0 before the division, so that no quotient exceeds it.
    below = logits - logits.amax(-1, keepdim=True)
    probabilities = torch.softmax(below / temperatures[:, None], dim=-1)
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    mass = cumulative[:, -1:]
    # Rounding must not put the target at the end of the range, where no token is.
    targets = torch.minimum(uniforms[:, None] * mass, torch.nextafter(mass, torch.zeros_like(mass)))
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1)
