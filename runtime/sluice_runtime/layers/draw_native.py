"""Draws by the compiled kernel, which reads the logits once. Knows no request."""

from __future__ import annotations

import torch
from sluice_kernels import native
from torch import Tensor

from sluice_runtime.layers.draw import GREEDY_BELOW, Draws


def draw_native(logits: Tensor, draws: Draws | None) -> Tensor:
    """See `layers.draw.draw`."""
    if draws is None:
        nothing = torch.zeros(len(logits), dtype=torch.float64)
        return native.draw(logits, nothing.float(), nothing, GREEDY_BELOW)
    return native.draw(logits, draws.temperatures, draws.uniforms, GREEDY_BELOW)
