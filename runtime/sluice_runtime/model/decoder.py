"""The decoder-only transformer that Qwen3 and Llama share. Knows tensors and attention, no request.

Shapes: n tokens of a step, flat over all rows; h hidden size; d head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.layers.attention import Attention
from sluice_runtime.layers.linear import Linear
from sluice_runtime.layers.mlp import GatedMlp
from sluice_runtime.layers.norm import rms_norm
from sluice_runtime.layers.rope import Rotation, rotate, rotation
from sluice_runtime.model.spec import ModelSpec


@dataclass(frozen=True)
class DecoderLayer:
    """Weights of one layer."""

    index: int
    attention_norm: Tensor
    qkv: Linear
    head_norm: Tensor | None
    """[query heads + key heads, d]; None where the variant has none."""
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

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """token_ids, positions: [n] → [n, h], before the last norm."""
        x = F.embedding(token_ids, self.embedding)
        turn = rotation(self.frequencies, positions, self.dtype)
        for layer in self.layers:
            normed = rms_norm(x, layer.attention_norm, self.spec.norm_eps)
            x = x + self._attend(layer, normed, turn, attention)
            x = x + layer.mlp(rms_norm(x, layer.mlp_norm, self.spec.norm_eps))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, h] → [m, vocabulary], float32."""
        return self.head(rms_norm(hidden, self.norm, self.spec.norm_eps)).float()

    def _attend(
        self, layer: DecoderLayer, x: Tensor, turn: Rotation, attention: Attention
    ) -> Tensor:
        spec = self.spec
        # [n, query heads + key heads + value heads, d]; queries and keys are treated alike.
        joined = layer.qkv(x).view(len(x), -1, spec.head_dim)
        turning, values = joined.tensor_split((spec.heads + spec.kv_heads,), dim=1)
        if layer.head_norm is not None:
            turning = rms_norm(turning, layer.head_norm, spec.norm_eps)
        queries, keys = rotate(turning, turn).tensor_split((spec.heads,), dim=1)
        attended = attention.attend(layer.index, queries, keys, values)
        return layer.output(attended.flatten(1))
