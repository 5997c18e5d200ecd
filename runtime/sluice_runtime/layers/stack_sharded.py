"""The layers in one call of the kernels, every thread with a shard of each matrix.

A thread has heads and a part of the feed-forward part of its own: tensor parallelism, as
Megatron-LM does it over GPUs. So threads meet four times a layer, and Python is left out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Final, Self

import torch
from sluice_kernels import native
from torch import Tensor

from sluice_runtime.layers.linear import pack
from sluice_runtime.layers.stack import LayerShape, LayerWeights, MlpWeights, PagedStep
from sluice_runtime.layers.stack_plain import head_norm

_NORMS: Final = 2
_MATRICES: Final = 4
"""Of each layer; matrices of each layer and shard."""


class ShardedStack:
    """See `layers.stack.LayerStack`."""

    def __init__(self, layers: Iterable[LayerWeights], shape: LayerShape, shards: int) -> None:
        """`shards` divides the key heads."""
        self._shape = shape
        self._shards = shards
        self._norms: list[Tensor] = []
        self._head_norms: list[Tensor] = []
        self._weights: list[Tensor] = []
        for weights in layers:
            self._norms += (weights.attention_norm, weights.mlp_norm)
            if (norm := head_norm(weights, shape, shards)) is not None:
                self._head_norms.append(norm.weight)
            self._weights += (pack(matrix) for matrix in _shards(weights, shards))

    def forward(self, x: Tensor, step: PagedStep) -> Tensor:
        """See `layers.stack.LayerStack`."""
        layout, angles = step.layout, step.angles
        native.sharded_layers(
            x,
            self._norms,
            self._head_norms,
            self._weights,
            self._shards,
            self._shape.norm_eps,
            angles.cos,
            angles.sin,
            step.pool.data,
            layout.pages,
            layout.offsets,
            layout.page_table,
            layout.rows,
            layout.begins,
            layout.contexts,
            self._shape.head_dim**-0.5,
        )
        return x

    def first_layer(self) -> Self:
        """See `layers.stack.LayerStack`."""
        stack = copy(self)
        stack._norms = self._norms[:_NORMS]
        stack._head_norms = self._head_norms[:1]
        stack._weights = self._weights[: _MATRICES * self._shards]
        return stack


def _shards(weights: LayerWeights, shards: int) -> Iterator[Tensor]:
    """qkv, output, gate and up, down: of the first shard, then of the second. Of a feed-forward
    part narrower than `shards` some have nothing."""

    def rows(*matrices: Tensor) -> Tensor:
        return torch.cat([matrix.tensor_split(shards)[shard] for matrix in matrices])

    mlp = weights.mlp
    assert isinstance(mlp, MlpWeights), "layers with experts have a PlainStack"
    for shard in range(shards):
        yield rows(weights.query, weights.key, weights.value)
        yield weights.output.tensor_split(shards, dim=1)[shard]
        yield rows(mlp.gate, mlp.up)
        yield mlp.down.tensor_split(shards, dim=1)[shard]
