"""The gated feed-forward part. Knows no model."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def silu_and_multiply(gate_up: Tensor) -> Tensor:
    """silu(gate) x up: [n, 2 x width], gate first → [n, width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
