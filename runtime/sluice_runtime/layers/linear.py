"""A matrix without bias, possibly several of a checkpoint joined. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True)
class Linear:
    """weight: [out, in]."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)
