"""The next token of each row from its logits: restrict, then sample.

A row with logits that are not finite gets NO_TOKEN and does not affect other rows. Knows no request
and no earlier token.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sluice_runtime.engine.sampling.randomness import uniform
from sluice_runtime.engine.sampling.restriction import restrict
from sluice_runtime.layers.backend import TORCH, Backend


@dataclass(frozen=True)
class Restrictions:
    """Which tokens m rows leave out, [m] each."""

    top_k: Tensor
    """Below 1: none."""
    top_p: Tensor
    min_p: Tensor


@dataclass(frozen=True)
class SamplingRows:
    """Parameters of m rows, [m] each."""

    temperature: Tensor
    seed: Tensor
    position: Tensor
    """Of the token to be drawn."""
    restrictions: Restrictions | None = None
    """None: no row leaves tokens out."""


def sample(logits: Tensor, rows: SamplingRows, backend: Backend = TORCH) -> Tensor:
    """logits: [m, vocabulary], float32, -inf from now on for tokens that are left out → [m] token
    ids, NO_TOKEN for rows without a distribution."""
    if (left_out := rows.restrictions) is not None:
        restrict(logits, rows.temperature, left_out.top_k, left_out.top_p, left_out.min_p)
    return backend.draw(logits, rows.temperature, uniform(rows.seed, rows.position))
