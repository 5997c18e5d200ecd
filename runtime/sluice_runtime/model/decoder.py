"""The decoder-only transformer that Qwen3 and Llama share. Knows tensors and layers, no request.

Shapes: n tokens of a step, flat over all rows; h hidden size; d head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.backend import Backend
from sluice_runtime.layers.linear import Linear
from sluice_runtime.layers.rope import angles_of
from sluice_runtime.layers.stack import LayerStack, PagedStep
from sluice_runtime.layers.token_layout import TokenLayout
from sluice_runtime.model.spec import ModelSpec


@dataclass(frozen=True)
class Decoder:
    """A loaded model: `hidden` for every token of a step, `logits` only where one is sampled."""

    spec: ModelSpec
    embedding: Tensor
    """[vocabulary, h]."""
    layers: LayerStack
    norm: Tensor
    head: Linear
    frequencies: Tensor
    """[d / 2], of the rotary embedding."""
    backend: Backend

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def hidden(
        self, token_ids: Tensor, positions: Tensor, pool: PagePool, layout: TokenLayout
    ) -> Tensor:
        """token_ids, positions: [n] → [n, h], before the last norm."""
        step = PagedStep(pool, layout, angles_of(self.frequencies, positions))
        return self.layers.forward(F.embedding(token_ids, self.embedding), step)

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, h] → [m, vocabulary], float32."""
        normed = self.backend.operators.rms_norm(hidden, self.norm, self.spec.norm_eps)
        return self.backend.to_float(self.head(normed))
