"""The nucleus of a distribution: the fewest tokens that hold a share of its mass.

Given as the least logit of its tokens, so that equal logits are in it or out of it together. Knows
no request.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_TRIAL_TOKENS: Final = 1024
"""So many tokens nearly always reach the mass; sorting the whole vocabulary is slow."""


def nucleus(logits: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:
    """logits: [k, v] float32; temperature, top_p: [k] → [k] least logits.

    On a CPU most rows are looked at in part. On another device the host does not know which rows
    need more than that, so all tokens of all rows are sorted.
    """
    if logits.device.type != "cpu":
        return _of_largest(logits, temperature, top_p, logits.shape[1])[0]
    width = min(_TRIAL_TOKENS, logits.shape[1])
    least, last = _of_largest(logits, temperature, top_p, width)
    wider = (last >= width).nonzero().squeeze(1)
    if len(wider):
        whole = logits[wider], temperature[wider], top_p[wider], logits.shape[1]
        least[wider] = _of_largest(*whole)[0]
    return least


def _of_largest(
    logits: Tensor, temperature: Tensor, top_p: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """[k] least logits if the `width` largest tokens hold the mass, and the [k] numbers of tokens
    before the last, which are `width` or more if they do not."""
    vocabulary = logits.shape[1]
    ordered = logits.topk(width).values
    log_mass = -torch.log_softmax(scaled(logits, temperature), -1).amax(-1, keepdim=True)
    cumulative = (scaled(ordered, temperature) - log_mass).double().exp().cumsum(-1)
    last = (cumulative < top_p.double()[:, None]).sum(-1).clamp(max=vocabulary - 1)
    return ordered.gather(1, last.clamp(max=width - 1)[:, None]).squeeze(1), last


def scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """The largest becomes 0 before the division, so that no quotient exceeds it."""
    return (logits - logits.amax(-1, keepdim=True)) / temperature[:, None]
