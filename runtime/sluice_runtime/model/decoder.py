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
from sluice_runtime.layers.rope import angles, rotate
from sluice_runtime.model.spec import ModelSpec


@dataclass(frozen=True)
class DecoderLayer:
    """Weights of one layer. `query_norm` and `key_norm` are None where the variant has none."""

    index: int
    attention_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
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
        rotation = angles(self.frequencies, positions, self.dtype)
        for layer in self.layers:
            normed = rms_norm(x, layer.attention_norm, self.spec.norm_eps)
            x = x + self._attend(layer, normed, rotation, attention)
            x = x + layer.mlp(rms_norm(x, layer.mlp_norm, self.spec.norm_eps))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, h] → [m, vocabulary], float32."""
        return self.head(rms_norm(hidden, self.norm, self.spec.norm_eps)).float()

    def _attend(
        self, layer: DecoderLayer, x: Tensor, rotation: tuple[Tensor, Tensor], attention: Attention
    ) -> Tensor:
        spec = self.spec
        q_size, kv_size = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        q, k, v = torch.split(layer.qkv(x), [q_size, kv_size, kv_size], dim=-1)
        # [n, head, d]
        q, k, v = (part.view(len(part), -1, spec.head_dim) for part in (q, k, v))
        if layer.query_norm is not None and layer.key_norm is not None:
            q = rms_norm(q, layer.query_norm, spec.norm_eps)
            k = rms_norm(k, layer.key_norm, spec.norm_eps)
        attended = attention.attend(layer.index, rotate(q, *rotation), rotate(k, *rotation), v)
        return layer.output(attended.flatten(1))
