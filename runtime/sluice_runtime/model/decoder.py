"""The decoder-only transformer that Qwen3 and Llama share. Knows tensors and attention, no request.

Shapes: n tokens of a step, flat over all rows; h hidden size; d head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.layers.attention import Attention
from sluice_runtime.layers.backend import Backend
from sluice_runtime.layers.linear import Linear
from sluice_runtime.layers.mlp import GatedMlp
from sluice_runtime.layers.norm import HeadNorm
from sluice_runtime.layers.rope import Angles, angles_of
from sluice_runtime.model.spec import ModelSpec


@dataclass(frozen=True)
class DecoderLayer:
    """Weights of one layer."""

    index: int
    attention_norm: Tensor
    qkv: Linear
    head_norm: HeadNorm | None
    """None where the variant has none."""
    output: Linear
    mlp_norm: Tensor
    mlp: GatedMlp


@dataclass(frozen=True)
class Decoder:
    """A loaded model: `hidden` for every token of a step, `logits` only where one is sampled."""

    spec: ModelSpec
    embedding: Tensor
    """[vocabulary, h]."""
    layers: tuple[DecoderLayer, ...]
    norm: Tensor
    head: Linear
    frequencies: Tensor
    """[d / 2], of the rotary embedding."""
    backend: Backend

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def angles(self, positions: Tensor) -> Angles:
        """[n] → what attention rotates a step's tokens by."""
        return angles_of(self.frequencies, positions)

    def hidden(self, token_ids: Tensor, attention: Attention) -> Tensor:
        """token_ids: [n] → [n, h], before the last norm."""
        parts, eps = self.backend, self.spec.norm_eps
        x = F.embedding(token_ids, self.embedding)
        delta: Tensor | None = None
        for layer in self.layers:
            weight = layer.attention_norm
            if delta is None:
                normed = parts.rms_norm(x, weight, eps)
            else:
                normed = parts.add_rms_norm(x, delta, weight, eps)
            delta = self._attend(layer, normed, attention)
            normed = parts.add_rms_norm(x, delta, layer.mlp_norm, eps)
            delta = layer.mlp.down(parts.silu_and_multiply(layer.mlp.gate_up(normed)))
        return x if delta is None else x.add_(delta)

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, h] → [m, vocabulary], float32."""
        normed = self.backend.rms_norm(hidden, self.norm, self.spec.norm_eps)
        return self.backend.to_float(self.head(normed))

    def _attend(self, layer: DecoderLayer, x: Tensor, attention: Attention) -> Tensor:
        # [n, query heads + key heads + value heads, d]
        qkv = layer.qkv(x).view(len(x), -1, self.spec.head_dim)
        return layer.output(attention.attend(layer.index, qkv, layer.head_norm).flatten(1))
