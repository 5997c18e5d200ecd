"""Draws the next token of each row from its logits.

A random number depends on the row's seed and on the token's position in its row, on nothing else:
not on the batch, the step or the process. A row whose logits are no numbers gets NO_TOKEN and
disturbs no other. Knows no request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

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
    seed: Tensor
    position: Tensor
    """Of the token to be drawn."""


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """logits: [m, vocabulary], float32 → [m] token ids, NO_TOKEN where no distribution is."""
    peaks, tokens = logits.max(-1)
    finite = peaks.isfinite()
    tokens[~finite] = NO_TOKEN
    drawn = ((rows.temperature >= GREEDY_BELOW) & finite).nonzero().squeeze(1)
    restricted = (rows.top_p < 1) | (rows.top_k > 0)
    for chosen, draw in (
        (drawn[~restricted[drawn]], _draw_any),
        (drawn[restricted[drawn]], _draw_restricted),
    ):
        if len(chosen):
            tokens[chosen] = draw(logits[chosen], _take(rows, chosen))
    return tokens


def _take(rows: SamplingRows, chosen: Tensor) -> SamplingRows:
    columns = (rows.temperature, rows.top_p, rows.top_k, rows.seed, rows.position)
    return SamplingRows(*(column[chosen] for column in columns))


def _probabilities(logits: Tensor, rows: SamplingRows) -> Tensor:
    """The largest logit is 0 before the division, so that no quotient exceeds it."""
    below = logits - logits.amax(-1, keepdim=True)
    return torch.softmax(below / rows.temperature[:, None], dim=-1)


def _draw_any(logits: Tensor, rows: SamplingRows) -> Tensor:
    return _invert(_probabilities(logits, rows), uniform(rows.seed, rows.position))


def _draw_restricted(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Among the top_k most probable, then the fewest of them whose mass reaches top_p."""
    vocabulary = logits.shape[1]
    counts = torch.where(rows.top_k > 0, rows.top_k.clamp(max=vocabulary), vocabulary)
    sorted_logits, ids = _largest(logits, int(counts.max()))
    probabilities = _probabilities(sorted_logits, rows)
    probabilities[torch.arange(probabilities.shape[1]) >= counts[:, None]] = 0
    probabilities /= probabilities.sum(-1, keepdim=True)
    before = probabilities.cumsum(-1) - probabilities
    before[:, 0] = -1.0  # the most probable token always stays
    probabilities[before >= rows.top_p[:, None]] = 0
    drawn = _invert(probabilities, uniform(rows.seed, rows.position))
    return ids.gather(1, drawn[:, None]).squeeze(1)


def _largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if count == logits.shape[1]:
        ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
        return ordered, ids
    largest, ids = logits.topk(count, dim=-1)
    return largest, ids


def _invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse of the cumulative distribution: [m, v], [m] → [m]. Unnormalised rows are fine."""
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    mass = cumulative[:, -1:]
    # Rounding must not put the target at the end of the range, where no token is.
    targets = torch.minimum(uniforms[:, None] * mass, torch.nextafter(mass, torch.zeros_like(mass)))
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1)


_MASK_53: Final = (1 << 53) - 1


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """A number in [0, 1) for each (seed, position): [m] int64, [m] int64 → [m] float64."""
    mixed = _mix(_mix(seeds) ^ _mix(positions + _signed(0x9E3779B97F4A7C15)))
    return (_shift(mixed, 11) & _MASK_53).double() / float(1 << 53)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014), in wrapping 64-bit arithmetic."""
    value = (value ^ _shift(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shift(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shift(value, 31)
