"""The most probable token of each row, and a random one, from logits. Knows no request."""

from __future__ import annotations

import torch
from torch import Tensor


def best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Largest logit and its token, [m, v] → [m], [m]; the largest is NaN where a logit is."""
    peaks, tokens = logits.max(-1)
    return peaks, tokens


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse of the cumulative distribution of softmax(logits / temperature), in the order of
    token ids: [m, v], [m], [m] float64 in [0, 1) → [m]."""
    # The largest logit is 0 before the division, so that no quotient exceeds it.
    below = logits - logits.amax(-1, keepdim=True)
    probabilities = torch.softmax(below / temperatures[:, None], dim=-1)
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    mass = cumulative[:, -1:]
    # Rounding must not put the target at the end of the range, where no token is.
    targets = torch.minimum(uniforms[:, None] * mass, torch.nextafter(mass, torch.zeros_like(mass)))
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1)
