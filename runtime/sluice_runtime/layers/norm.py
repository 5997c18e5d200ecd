"""RMS norm. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True)
class HeadNorm:
    """A norm over each query and key head."""

    weight: Tensor
    """[query heads + key heads, dim]."""
    eps: float


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) x weight over the last dimension.

    x: [..., d]; weight: [d], or [head, d] where each head has its own.
    """
    if weight.dim() == 1:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x, weight.shape[-1:], None, eps) * weight


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm of x + delta, which x becomes."""
    return rms_norm(x.add_(delta), weight, eps)
