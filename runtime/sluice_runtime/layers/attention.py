"""What a model asks of attention, and what a backend is told about a step.

A backend stores the step's keys and values in the page pool and lets every token attend to all
tokens before it in its row, whether the row extends or decodes. Variants are a registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention_torch import TorchAttention
from sluice_runtime.layers.token_layout import TokenLayout


class Attention(Protocol):
    """Attention of one step, over all layers."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """queries [n, head, dim], keys and values [n, kv_head, dim] → [n, head, dim]."""
        ...


BACKENDS: Final[Mapping[str, Callable[[PagePool, TokenLayout], Attention]]] = {
    "torch": TorchAttention
}
