"""top_k, top_p and min_p, each computed as the least logit that a token must have.

The least logit is a value from the same row, so equal logits are kept or left out together, and the
result for a row does not depend on other rows. top_k applies before top_p. Knows no randomness.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_TRIAL_TOKENS: Final = 1024
"""So many tokens nearly always reach the mass of top_p; sorting the whole vocabulary is slow."""


def restrict(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """logits: [m, v], parameters [m] → the same tensor, with -inf in place of tokens left out."""
    ranked = top_k > 0
    if len(at := _where(ranked)):
        _cut(logits, at, _of_rank(logits[at], temperature[at], top_k[at], top_p[at]))
    if len(at := _where(~ranked & (top_p < 1))):
        _cut(logits, at, _of_mass(logits[at], temperature[at], top_p[at]))
    if len(at := _where(min_p > 0)):
        _cut(logits, at, logits[at].amax(-1) + temperature[at] * min_p[at].log())
    return logits


def _where(rows: Tensor) -> Tensor:
    return rows.nonzero().squeeze(1)


def _cut(logits: Tensor, rows: Tensor, least: Tensor) -> None:
    chosen = logits[rows]
    logits[rows] = chosen.masked_fill_(chosen < least[:, None], float("-inf"))


def _of_rank(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Least logit of the top_k largest, or of the fewest of them that hold top_p of their mass."""
    counts = top_k.clamp(max=logits.shape[1])
    ordered = logits.topk(int(counts.max())).values
    beyond = torch.arange(ordered.shape[1]) >= counts[:, None]
    weights = _scaled(ordered, temperature).double().exp().masked_fill_(beyond, 0)
    cumulative = weights.cumsum(-1)
    wanted = top_p.double() * cumulative[:, -1]
    last = (cumulative < wanted[:, None]).sum(-1)
    last = torch.where(top_p < 1, last, counts - 1).minimum(counts - 1)
    return ordered.gather(1, last[:, None]).squeeze(1)


def _of_mass(
    logits: Tensor, temperature: Tensor, top_p: Tensor, trial_tokens: int = _TRIAL_TOKENS
) -> Tensor:
    """Least logit of the fewest tokens that hold top_p of the mass."""
    vocabulary = logits.shape[1]
    width = min(trial_tokens, vocabulary)
    ordered = logits.topk(width).values
    log_mass = -torch.log_softmax(_scaled(logits, temperature), -1).amax(-1, keepdim=True)
    cumulative = (_scaled(ordered, temperature) - log_mass).double().exp().cumsum(-1)
    last = (cumulative < top_p.double()[:, None]).sum(-1).clamp(max=vocabulary - 1)
    least = ordered.gather(1, last.clamp(max=width - 1)[:, None]).squeeze(1)
    wider = (last >= width).nonzero().squeeze(1)
    if len(wider):
        least[wider] = _of_mass(logits[wider], temperature[wider], top_p[wider], vocabulary)
    return least


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """The largest becomes 0 before the division, so that no quotient exceeds it."""
    return (logits - logits.amax(-1, keepdim=True)) / temperature[:, None]
