"""RMS norm. Knows no model."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) x weight over the last dimension.

    x: [..., d]; weight: [d], or [head, d] where each head has its own.
    """
    if weight.dim() == 1:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x, weight.shape[-1:], None, eps) * weight
