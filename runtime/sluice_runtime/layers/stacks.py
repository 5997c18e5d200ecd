"""Two ways to compute a decoder's layers.

`PlainStack` computes one operator after the other; each operator shares its work among all threads.

`ShardedStack` computes all layers in one call of the kernels; every thread has a shard of each
matrix. A thread has its own heads and its own slice of the feed-forward part: tensor parallelism,
as in Megatron-LM across GPUs. So threads synchronise four times a layer, without Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Final, Self

import torch
from sluice_kernels import native
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import Attention, AttentionRule, TokenLayout
from sluice_runtime.layers.dense import (
    Activation,
    HeadNorm,
    Linear,
    Multiply,
    gelu_and_multiply,
    linear,
    pack,
)
from sluice_runtime.layers.experts import experts
from sluice_runtime.layers.packed import Matrix, joined
from sluice_runtime.layers.rope import Angles
from sluice_runtime.layers.stack import (
    ExpertsWeights,
    LayerShape,
    LayerWeights,
    MlpWeights,
    PagedStep,
)
from sluice_runtime.parallel.group import Group


@dataclass(frozen=True)
class Operators:
    """Functions that layers are made of. `add_rms_norm` changes its `x`, and may change its
    `delta`."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    """x [n, h], weight [h], eps → [n, h]."""
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    """x, delta [n, h], weight [h], eps → [n, h], the norm of x + delta, which x becomes."""
    silu_and_multiply: Callable[[Tensor], Tensor]
    """[n, 2 x width], gate first → [n, width]."""
    attention: Callable[[PagePool, TokenLayout, Angles], Attention]
    linear: Multiply = linear
    attention_by: Callable[[PagePool, TokenLayout, Angles, AttentionRule], Attention] | None = None
    """Attention by a rule; None: not supported, so the backend gets no model with rules."""
    gelu_and_multiply: Activation = gelu_and_multiply
    """[n, 2 x width], gate first → [n, width]."""

    def activation(self, activation: Activation | None) -> Activation:
        """The function that computes a model's activation; None: `silu_and_multiply`."""
        if activation is gelu_and_multiply:
            return self.gelu_and_multiply
        return activation or self.silu_and_multiply


@dataclass(frozen=True)
class _Layer:
    index: int
    attention_norm: Tensor | None
    qkv: Linear
    head_norm: HeadNorm | None
    output: Linear
    attention_post_norm: Tensor | None
    mlp_norm: Tensor | None
    mlp: Linear
    mlp_post_norm: Tensor | None
    sinks: Tensor | None


class PlainStack:
    """Layers that are computed one operator after the other: see `layers.stack.LayerStack`."""

    def __init__(
        self, layers: Iterable[LayerWeights], shape: LayerShape, operators: Operators
    ) -> None:
        self._layers = [
            _layer(index, weights, shape, operators) for index, weights in enumerate(layers)
        ]
        self._shape = shape
        self._operators = operators

    def forward(self, x: Tensor, step: PagedStep) -> Tensor:
        """Computes the layers: see `layers.stack.LayerStack`."""
        attention_of = self._attention(step)
        delta: Tensor | None = None
        for layer in self._layers:
            normed = self._entering(x, delta, layer.attention_norm)
            delta = self._attend(layer, normed, attention_of(layer.index))
            delta = self._leaving(delta, layer.attention_post_norm)
            # `normed` serves both parts, so attention's input is freed before the feed-forward part
            # runs.
            normed = self._entering(x, delta, layer.mlp_norm)
            delta = self._leaving(layer.mlp(normed), layer.mlp_post_norm)
        return x if delta is None else x.add_(delta)

    def _entering(self, x: Tensor, delta: Tensor | None, norm: Tensor | None) -> Tensor:
        """Input of a part: `x`, to which `delta` is added, or its norm."""
        parts, eps = self._operators, self._shape.norm_eps
        if norm is None:
            return x if delta is None else x.add_(delta)
        if delta is None:
            return parts.rms_norm(x, norm, eps)
        return parts.add_rms_norm(x, delta, norm, eps)

    def _leaving(self, delta: Tensor, norm: Tensor | None) -> Tensor:
        """Value that a part adds to the residual stream: its output, or the norm of that."""
        if norm is None:
            return delta
        return self._operators.rms_norm(delta, norm, self._shape.norm_eps)

    def part(self, first: int, end: int) -> Self:
        """See `layers.stack.LayerStack`."""
        stack = copy(self)
        stack._layers = self._layers[first:end]
        return stack

    def _attention(self, step: PagedStep) -> Callable[[int], Attention]:
        """Attention of the step, by layer."""
        parts, shape = self._operators, self._shape
        if shape.rule is None:
            common = parts.attention(step.pool, step.layout, step.angles)
            return lambda _: common
        assert parts.attention_by is not None, "the backend was chosen without regard to the rule"
        sinks = {layer.index: layer.sinks for layer in self._layers if layer.sinks is not None}
        rule, where = replace(shape.rule, sinks=sinks), (step.pool, step.layout)
        whole = parts.attention_by(*where, step.angles, replace(rule, window_tokens=None))
        if not shape.windows:
            return lambda _: whole
        windowed = parts.attention_by(*where, step.window_angles or step.angles, rule)
        return lambda layer: windowed if layer in shape.windows else whole

    def _attend(self, layer: _Layer, x: Tensor, attention: Attention) -> Tensor:
        # [n, query heads + key heads + value heads, d]
        qkv = layer.qkv(x).view(len(x), -1, self._shape.head_dim)
        return layer.output(attention.attend(layer.index, qkv, layer.head_norm).flatten(1))


class FusedLayer(PlainStack):
    """The layer of an EAGLE-3 head, whose queries, keys and values are made of two inputs."""

    def fuse(self, embedded: Tensor, x: Tensor, norm: Tensor, step: PagedStep) -> Tensor:
        """`x` plus what the layer adds to it, in place: [n, h], [n, h] → [n, h]. `norm`: weights of
        the norm of `x`; the layer's own norm is for `embedded`."""
        (layer,) = self._layers
        attention = self._operators.attention(step.pool, step.layout, step.angles)
        own = self._entering(embedded, None, layer.attention_norm)
        both = torch.cat((own, self._entering(x, None, norm)), dim=-1)
        delta = self._attend(layer, both, attention)
        return x.add_(layer.mlp(self._entering(x, delta, layer.mlp_norm)))


_Matrix = Callable[..., Linear]
"""(bias, one or several weights [out, in] by field) → their product, joined in this order."""


def _layer(index: int, weights: LayerWeights, shape: LayerShape, operators: Operators) -> _Layer:
    def matrix(bias: Tensor | None = None, **parts: Matrix) -> Linear:
        bank, multiply = shape.adapters, operators.linear(joined([*parts.values()]), bias)
        return multiply if bank is None else bank.adapted(multiply, index, parts)

    activation = operators.activation(shape.activation)
    qkv_bias = None if weights.qkv_biases is None else torch.cat(weights.qkv_biases)
    return _Layer(
        index=index,
        attention_norm=weights.attention_norm,
        qkv=_whole_normed(
            matrix(qkv_bias, query=weights.query, key=weights.key, value=weights.value),
            weights.whole_norms,
            shape,
        ),
        head_norm=head_norm(weights, shape),
        output=_summed(matrix(weights.output_bias, output=weights.output), shape.group),
        attention_post_norm=weights.attention_post_norm,
        mlp_norm=weights.mlp_norm,
        mlp=_summed(_mlp(weights.mlp, operators, matrix, activation), shape.group),
        mlp_post_norm=weights.mlp_post_norm,
        sinks=weights.sinks,
    )


def _mlp(
    weights: MlpWeights | ExpertsWeights,
    operators: Operators,
    matrix: _Matrix,
    activation: Activation,
) -> Linear:
    if isinstance(weights, ExpertsWeights):
        return experts(weights, activation, operators.linear)
    gate_up, down = matrix(gate=weights.gate, up=weights.up), matrix(down=weights.down)
    return lambda x: down(activation(gate_up(x)))


def _whole_normed(qkv: Linear, norms: tuple[Tensor, Tensor] | None, shape: LayerShape) -> Linear:
    """RMS norm of queries and of keys, each over all heads of all ranks, in float32."""
    if norms is None:
        return qkv
    sizes, group, eps = [len(norm) for norm in norms], shape.group, shape.norm_eps

    def apply(x: Tensor) -> Tensor:
        qkv_rows = qkv(x)
        parts = torch.split(qkv_rows[:, : sum(sizes)], sizes, dim=1)
        squares = torch.stack([part.float().square().mean(1) for part in parts])
        scales = group.sum(squares).div_(group.size).add_(eps).rsqrt_()
        for part, scale, norm in zip(parts, scales, norms, strict=True):
            part.copy_(part.float().mul_(scale[:, None]).mul_(norm))
        return qkv_rows

    return apply


def _summed(multiply: Linear, group: Group) -> Linear:
    """A product whose inputs are divided among the ranks; each rank gets the sum of all ranks'
    products."""
    if group.size == 1:
        return multiply
    return lambda x: group.sum(multiply(x))


def head_norm(weights: LayerWeights, shape: LayerShape, shards: int = 1) -> HeadNorm | None:
    """Head norm for the query and key heads of one of `shards` equal parts."""
    if weights.head_norms is None:
        return None
    query, key = weights.head_norms
    heads, kv_heads = shape.heads // shards, shape.kv_heads // shards
    return HeadNorm(torch.cat((query.expand(heads, -1), key.expand(kv_heads, -1))), shape.norm_eps)


_NORMS: Final = 2
_MATRICES: Final = 4
"""Matrices of each layer and shard."""


class ShardedStack:
    """Layers that threads compute in shards: see `layers.stack.LayerStack`."""

    def __init__(
        self,
        layers: Iterable[LayerWeights],
        shape: LayerShape,
        shards: int,
        packed: Callable[[Tensor], native.Matrix] = pack,
    ) -> None:
        """`shards` divides the key heads; `packed`: converts a matrix to what the kernel reads."""
        self._shape = shape
        self._shards = shards
        self._first_layer = 0
        """Layer of the pool in which the first of these layers has its keys and values."""
        self._norms: list[Tensor] = []
        self._head_norms: list[Tensor] = []
        self._weights: list[native.Matrix] = []
        for weights in layers:
            for norm_before in (weights.attention_norm, weights.mlp_norm):
                assert norm_before is not None, "layers without one have a PlainStack"
                self._norms.append(norm_before)
            if (norm := head_norm(weights, shape, shards)) is not None:
                self._head_norms.append(norm.weight)
            self._weights += (packed(matrix) for matrix in _shards(weights, shards))

    def forward(self, x: Tensor, step: PagedStep) -> Tensor:
        """See `layers.stack.LayerStack`."""
        if not self._weights:
            return x
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
            self._first_layer,
            layout.pages,
            layout.offsets,
            layout.page_table,
            layout.rows,
            layout.begins,
            layout.contexts,
            self._shape.head_dim**-0.5,
        )
        return x

    def part(self, first: int, end: int) -> Self:
        """See `layers.stack.LayerStack`."""
        stack, matrices = copy(self), _MATRICES * self._shards
        stack._first_layer = self._first_layer + first
        stack._norms = self._norms[first * _NORMS : end * _NORMS]
        stack._head_norms = self._head_norms[first:end]
        stack._weights = self._weights[first * matrices : end * matrices]
        return stack


def _shards(weights: LayerWeights, shards: int) -> Iterator[Tensor]:
    """Matrices qkv, output, gate and up, down of the first shard, then of the next. If a
    feed-forward part is narrower than `shards`, some shards have nothing of it."""

    def rows(*matrices: Matrix) -> Tensor:
        return torch.cat([_tensor(matrix).tensor_split(shards)[shard] for matrix in matrices])

    mlp = weights.mlp
    assert isinstance(mlp, MlpWeights), "layers with experts have a PlainStack"
    for shard in range(shards):
        yield rows(weights.query, weights.key, weights.value)
        yield _tensor(weights.output).tensor_split(shards, dim=1)[shard]
        yield rows(mlp.gate, mlp.up)
        yield _tensor(mlp.down).tensor_split(shards, dim=1)[shard]


def _tensor(matrix: Matrix) -> Tensor:
    assert isinstance(matrix, Tensor), "CPUs dequantise while loading"
    return matrix
