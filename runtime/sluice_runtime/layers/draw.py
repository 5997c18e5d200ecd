"""Draws one token for each row from its logits, in torch or by the compiled kernel, and computes
the nucleus of top_p. Knows no request.

In torch the same operations run on every device. They depend only on numbers that the host knows,
so the host never waits for the device.

The nucleus of a distribution is its smallest set of tokens with a given share of the mass. It is
represented by the smallest logit in it, so equal logits are kept or left out together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from sluice_kernels import native
from torch import Tensor

from sluice_runtime.scheduler.batch import NO_TOKEN

GREEDY_BELOW: Final = 1e-5
"""Temperature below which the most probable token is taken, since softmax would give it all the
mass."""
_BLOCK: Final = 256
"""Tokens in a block. Masses are summed by block before the running sum, because a running sum over
all tokens, in float64, would be read and written several times."""
_TRIAL_TOKENS: Final = 1024
"""Number of largest tokens that is tried first: they nearly always hold the mass, and a running sum
over the whole vocabulary is slow."""


@dataclass(frozen=True)
class Draws:
    """Parameters of draws for m rows, not all of which take their most probable token."""

    temperatures: Tensor
    """[m] float32."""
    uniforms: Tensor
    """[m] float64 in [0, 1)."""
    places: Tensor | None
    """Indices [k] of rows with a temperature of GREEDY_BELOW or more; None: all."""


def draw(logits: Tensor, draws: Draws | None) -> Tensor:
    """Draws tokens: logits [m, v] float32 → [m] tokens. draws None: every row takes its most
    probable token.

    The first of equally probable tokens is taken. A row whose largest logit is not finite has no
    distribution and gets NO_TOKEN.
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
    """Mass of each block of tokens: [k, v] → [k, blocks] float64."""
    whole = weights.shape[1] // _BLOCK * _BLOCK
    blocks = weights[:, :whole].view(len(weights), -1, _BLOCK).sum(-1, dtype=torch.float64)
    rest = weights[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)
    return torch.cat((blocks, rest), 1)


def _find(masses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """First place in each row where the running sum of `masses` exceeds the target, and the
    target's remainder at that place: [k, n], [k] → [k], [k]."""
    running = masses.cumsum(-1)
    whole = running[:, -1]
    # Rounding must not move the target to the end of the range, past the last token.
    targets = torch.minimum(targets, torch.nextafter(whole, torch.zeros_like(whole)))[:, None]
    # A row without a distribution may get any valid place.
    place = torch.searchsorted(running, targets, right=True).clamp_(max=masses.shape[1] - 1)
    before = F.pad(running, (1, 0)).gather(1, place)
    return place.squeeze(1), (targets - before).squeeze(1)


def draw_native(logits: Tensor, draws: Draws | None) -> Tensor:
    """Draws by the compiled kernel: see `layers.draw.draw`."""
    if draws is None:
        nothing = torch.zeros(len(logits), dtype=torch.float64)
        return native.draw(logits, nothing.float(), nothing, GREEDY_BELOW)
    return native.draw(logits, draws.temperatures, draws.uniforms, GREEDY_BELOW)


def nucleus(logits: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:
    """Smallest logit in each row's nucleus. logits: [k, v] float32; temperature, top_p: [k] → [k].

    On a CPU the mass of most rows is summed over their largest tokens only. On other devices the
    host does not know which rows need more.
    """
    if logits.device.type != "cpu":
        return _of_largest(logits.topk(logits.shape[1]).values, logits, temperature, top_p)[0]
    # numpy sorts in a thirtieth of the time that torch takes.
    ascending = torch.from_numpy(np.sort(logits.numpy(), axis=-1))
    tried = ascending[:, -_TRIAL_TOKENS:].flip(-1)
    least, last = _of_largest(tried, logits, temperature, top_p)
    wider = (last >= tried.shape[1]).nonzero().squeeze(1)
    if len(wider):
        whole = ascending[wider].flip(-1), logits[wider], temperature[wider], top_p[wider]
        least[wider] = _of_largest(*whole)[0]
    return least


def _of_largest(
    ordered: Tensor, logits: Tensor, temperature: Tensor, top_p: Tensor
) -> tuple[Tensor, Tensor]:
    """Smallest logit [k] of the nucleus among the largest, and the number [k] of tokens before it.
    ordered: [k, n], the n largest logits of each row, the largest first. The number is n or more if
    these do not hold the mass."""
    vocabulary, width = logits.shape[1], ordered.shape[1]
    log_mass = -torch.log_softmax(scaled(logits, temperature), -1).amax(-1, keepdim=True)
    cumulative = (scaled(ordered, temperature) - log_mass).double().exp().cumsum(-1)
    last = (cumulative < top_p.double()[:, None]).sum(-1).clamp(max=vocabulary - 1)
    return ordered.gather(1, last.clamp(max=width - 1)[:, None]).squeeze(1), last


def scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logits less the row's largest, divided by the temperature, so that none exceeds 0."""
    return (logits - logits.amax(-1, keepdim=True)) / temperature[:, None]
