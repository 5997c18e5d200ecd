"""Rotary position embedding, plain and with Llama 3's frequency scaling.

Formulas: RoFormer (Su et al. 2021), halves rotated as in the Hugging Face layout; Llama 3 scaling
as in Meta's reference code. Knows no model: angles come from positions alone, so there is no table
whose length would bound the context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@dataclass(frozen=True)
class Rope:
    """How positions turn into angles."""

    theta: float
    scaling: Llama3Scaling | None = None


def inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """[head_dim / 2], float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    return _scale(frequencies, rope.scaling) if rope.scaling else frequencies


def _scale(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_context_tokens / wavelengths
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


@dataclass(frozen=True)
class Angles:
    """cos and sin of a step's tokens, [n, head_dim / 2], float32."""

    cos: Tensor
    sin: Tensor


def angles_of(frequencies: Tensor, positions: Tensor) -> Angles:
    """frequencies: [head_dim / 2]; positions: [n]."""
    angles = positions.float()[:, None] * frequencies
    return Angles(angles.cos(), angles.sin())


@dataclass(frozen=True)
class Rotation:
    """cos and sin for `rotate`, [n, 1, head_dim]: the 1 stands for the heads.

    Both halves of the last dimension hold the same angles; the sine of the first is negated, so
    that a rotation is one product with the vector and one with its halves exchanged.
    """

    cos: Tensor
    sin: Tensor


def rotation(angles: Angles, dtype: torch.dtype) -> Rotation:
    """For vectors of `dtype`."""
    cos, sin = angles.cos[:, None], angles.sin[:, None]
    return Rotation(torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """x: [n, head, head_dim]; first and second half of the last dimension are one pair each."""
    exchanged = x.roll(x.shape[-1] // 2, dims=-1)
    return (x * by.cos).addcmul_(exchanged, by.sin)
