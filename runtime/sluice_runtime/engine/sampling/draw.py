"""Draws the next token of each row from its logits.

A row whose logits are no numbers gets NO_TOKEN and disturbs no other. Knows no request, and nothing
of what was drawn before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from torch import Tensor

from sluice_runtime.engine.sampling.randomness import uniform
from sluice_runtime.engine.sampling.restriction import restrict
from sluice_runtime.layers.backend import TORCH, Backend
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

    @property
    def restricted(self) -> bool:
        """Whether any row leaves tokens out."""
        return bool(((self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)).any())

    def take(self, chosen: Tensor) -> SamplingRows:
        """These rows of it."""
        return SamplingRows(*(getattr(self, field.name)[chosen] for field in fields(self)))


def sample(logits: Tensor, rows: SamplingRows, backend: Backend = TORCH) -> Tensor:
    """logits: [m, vocabulary], float32 → [m] token ids, NO_TOKEN where no distribution is."""
    peaks, tokens = backend.best(logits)
    finite = peaks.isfinite()
    tokens[~finite] = NO_TOKEN
    drawn = ((rows.temperature >= GREEDY_BELOW) & finite).nonzero().squeeze(1)
    if not len(drawn):
        return tokens
    chosen = rows.take(drawn)
    # The common case copies nothing: every row is drawn, from all tokens.
    kept = logits if len(drawn) == len(logits) else logits[drawn]
    if chosen.restricted:
        kept = kept.clone() if kept is logits else kept
        restrict(kept, chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p)
    uniforms = uniform(chosen.seed, chosen.position)
    tokens[drawn] = backend.draw(kept, chosen.temperature, uniforms)
    return tokens
