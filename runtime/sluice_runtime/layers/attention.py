"""The interface between model and attention.

A backend norms and rotates queries and keys, stores keys and values in the page pool and lets every
token attend to all tokens before it in its row, whether the row extends or decodes.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from sluice_runtime.layers.norm import HeadNorm


class Attention(Protocol):
    """Attention of one step, over all layers."""

    def attend(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        """qkv [n, heads + key heads + value heads, dim] → [n, heads, dim].

        Made for one step: the pool, where its tokens go, and the angles of their positions.
        """
        ...
