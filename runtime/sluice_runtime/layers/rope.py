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


def angles(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin, each [n, 1, head_dim / 2]: the 1 stands for the heads."""
    turned = (positions.float()[:, None] * frequencies)[:, None]
    return turned.cos().to(dtype), turned.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [n, head, head_dim]; first and second half of the last dimension are one pair each."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
