"""The layers, one operator after the other; each operator shares its work among all threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import Attention
from sluice_runtime.layers.experts import Activation, experts
from sluice_runtime.layers.linear import Linear, linear
from sluice_runtime.layers.norm import HeadNorm
from sluice_runtime.layers.rope import Angles
from sluice_runtime.layers.stack import (
    ExpertsWeights,
    LayerShape,
    LayerWeights,
    MlpWeights,
    PagedStep,
)
from sluice_runtime.layers.token_layout import TokenLayout
from sluice_runtime.parallel.group import Group


@dataclass(frozen=True)
class Operators:
    """What is not a matrix product. `add_rms_norm` changes its `x`, and may change its `delta`."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    """x [n, h], weight [h], eps → [n, h]."""
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    """x, delta [n, h], weight [h], eps → [n, h], the norm of what x becomes: x + delta."""
    silu_and_multiply: Callable[[Tensor], Tensor]
    """[n, 2 x width], gate first → [n, width]."""
    attention: Callable[[PagePool, TokenLayout, Angles], Attention]


@dataclass(frozen=True)
class _Layer:
    index: int
    attention_norm: Tensor
    qkv: Linear
    head_norm: HeadNorm | None
    output: Linear
    mlp_norm: Tensor
    mlp: Linear


class PlainStack:
    """See `layers.stack.LayerStack`."""

    def __init__(
        self, layers: Iterable[LayerWeights], shape: LayerShape, operators: Operators
    ) -> None:
        self._layers = [
            _layer(index, weights, shape, operators.silu_and_multiply)
            for index, weights in enumerate(layers)
        ]
        self._shape = shape
        self._operators = operators

    def forward(self, x: Tensor, step: PagedStep) -> Tensor:
        """See `layers.stack.LayerStack`."""
        parts, eps = self._operators, self._shape.norm_eps
        attention = parts.attention(step.pool, step.layout, step.angles)
        delta: Tensor | None = None
        for layer in self._layers:
            weight = layer.attention_norm
            if delta is None:
                normed = parts.rms_norm(x, weight, eps)
            else:
                normed = parts.add_rms_norm(x, delta, weight, eps)
            delta = self._attend(layer, normed, attention)
            normed = parts.add_rms_norm(x, delta, layer.mlp_norm, eps)
            delta = layer.mlp(normed)
        return x if delta is None else x.add_(delta)

    def first_layer(self) -> Self:
        """See `layers.stack.LayerStack`."""
        stack = copy(self)
        stack._layers = self._layers[:1]
        return stack

    def _attend(self, layer: _Layer, x: Tensor, attention: Attention) -> Tensor:
        # [n, query heads + key heads + value heads, d]
        qkv = layer.qkv(x).view(len(x), -1, self._shape.head_dim)
        return layer.output(attention.attend(layer.index, qkv, layer.head_norm).flatten(1))


_Matrix = Callable[..., Linear]
"""(bias, one or several weights [out, in] by field) → their product, joined in this order."""


def _layer(index: int, weights: LayerWeights, shape: LayerShape, activation: Activation) -> _Layer:
    def matrix(bias: Tensor | None = None, **joined: Tensor) -> Linear:
        parts, bank = tuple(joined.values()), shape.adapters
        multiply = linear(torch.cat(parts) if len(parts) > 1 else parts[0], bias)
        return multiply if bank is None else bank.adapted(multiply, index, joined)

    qkv_bias = None if weights.qkv_biases is None else torch.cat(weights.qkv_biases)
    return _Layer(
        index=index,
        attention_norm=weights.attention_norm,
        qkv=matrix(qkv_bias, query=weights.query, key=weights.key, value=weights.value),
        head_norm=head_norm(weights, shape),
        output=_summed(matrix(output=weights.output), shape.group),
        mlp_norm=weights.mlp_norm,
        mlp=_summed(_mlp(weights.mlp, activation, matrix), shape.group),
    )


def _mlp(weights: MlpWeights | ExpertsWeights, activation: Activation, matrix: _Matrix) -> Linear:
    if isinstance(weights, ExpertsWeights):
        return experts(weights, activation)
    gate_up, down = matrix(gate=weights.gate, up=weights.up), matrix(down=weights.down)
    return lambda x: down(activation(gate_up(x)))


def _summed(multiply: Linear, group: Group) -> Linear:
    """Of a product whose inputs the ranks share: all of them have the sum of theirs."""
    if group.size == 1:
        return multiply
    return lambda x: group.sum(multiply(x))


def head_norm(weights: LayerWeights, shape: LayerShape, shards: int = 1) -> HeadNorm | None:
    """For the query and key heads of one of `shards` equal parts."""
    if weights.head_norms is None:
        return None
    query, key = weights.head_norms
    heads, kv_heads = shape.heads // shards, shape.kv_heads // shards
    return HeadNorm(torch.cat((query.expand(heads, -1), key.expand(kv_heads, -1))), shape.norm_eps)
