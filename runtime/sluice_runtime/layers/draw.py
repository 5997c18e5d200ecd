"""One token a row from its logits. Knows no request.

The same operations on every device: what they do depends on what the host knows, never on a number
that it would have to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.scheduler.batch import NO_TOKEN

GREEDY_BELOW: Final = 1e-5
"""Temperature under which the most probable token is taken: softmax would give it all the mass."""
_BLOCK: Final = 256
"""Tokens whose mass is summed before the running sum is taken: that of all tokens, in float64,
would be read and written several times."""


@dataclass(frozen=True)
class Draws:
    """How m rows draw, if some do not take their most probable token."""

    temperatures: Tensor
    """[m] float32."""
    uniforms: Tensor
    """[m] float64 in [0, 1)."""
    places: Tensor | None
    """[k] which of the rows have a temperature of GREEDY_BELOW or more; None: all."""


def draw(logits: Tensor, draws: Draws | None) -> Tensor:
    """logits: [m, v] float32 → [m] tokens. None: every row takes its most probable token.

    Of equally probable tokens the first; NO_TOKEN for a row whose largest logit is not finite,
    since it has no distribution.
    """
    peaks, tokens = logits.max(-1)
    if draws is not None and draws.places is None:
        tokens = _from_distribution(logits - peaks[:, None], draws.temperatures, draws.uniforms)
    elif draws is not None and draws.places is not None:
        drawn = draws.places
        below = logits.index_select(0, drawn).sub_(peaks[drawn][:, None])
        temperatures, uniforms = draws.temperatures[drawn], draws.uniforms[drawn]
        tokens.index_copy_(0, drawn, _from_distribution(below, temperatures, uniforms))
    return tokens.masked_fill_(~peaks.isfinite(), NO_TOKEN)


def _from_distribution(below: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse of the cumulative distribution of softmax(logits / temperature), in the order of
    token ids. below: [k, v] logits less the largest of the row, so that no quotient exceeds 0;
    changed in place."""
    weights = below.div_(temperatures[:, None]).exp_()
    sums = _block_sums(weights)
    block, left = _find(sums, uniforms * sums.sum(-1))
    tokens = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=below.device)
    last = below.shape[1] - 1
    inside = weights.gather(1, tokens.clamp(max=last)).double().masked_fill_(tokens > last, 0)
    return block * _BLOCK + _find(inside, left)[0]


def _block_sums(weights: Tensor) -> Tensor:
    """[k, v] → [k, blocks] float64."""
    whole = weights.shape[1] // _BLOCK * _BLOCK
    blocks = weights[:, :whole].view(len(weights), -1, _BLOCK).sum(-1, dtype=torch.float64)
    rest = weights[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)
    return torch.cat((blocks, rest), 1)


def _find(masses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """For each row the first place at which the running sum of `masses` exceeds the target, and
    what of the target is left for it. [k, n], [k] → [k], [k]"""
    running = masses.cumsum(-1)
    whole = running[:, -1]
    # Rounding must not put the target at the end of the range, where no token is.
    targets = torch.minimum(targets, torch.nextafter(whole, torch.zeros_like(whole)))[:, None]
    # Without a distribution any place that exists will do.
    place = torch.searchsorted(running, targets, right=True).clamp_(max=masses.shape[1] - 1)
    before = F.pad(running, (1, 0)).gather(1, place)
    return place.squeeze(1), (targets - before).squeeze(1)
