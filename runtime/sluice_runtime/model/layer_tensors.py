"""Tensors of a layer, by their names in checkpoints: reads this rank's part of each.

Knows one layer at a time: embeddings and the whole model are those of `model.load`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from sluice_contract.config.engine import KvCacheDtype, WeightDType
from sluice_contract.config.model_shape import Experts
from torch import Tensor

from sluice_runtime.kv.pool import CPU
from sluice_runtime.layers.adapters import SlotShape
from sluice_runtime.layers.rope import in_order, pair_order
from sluice_runtime.layers.stack import ExpertsWeights, LayerWeights, MlpWeights
from sluice_runtime.model.shard import Part, Shape, Shard, Split
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.model.variants import ExpertNames
from sluice_runtime.model.weights import WeightSource
from sluice_runtime.parallel.group import SOLO, Group

SPLITS: Final[Mapping[str, Split]] = {
    "embed_tokens": Split.ROWS,
    "q_proj": Split.ROWS,
    "k_proj": Split.ROWS,
    "v_proj": Split.ROWS,
    "o_proj": Split.COLUMNS,
    "gate": Split.NONE,
    "router": Split.NONE,
    "gate_proj": Split.ROWS,
    "up_proj": Split.ROWS,
    "down_proj": Split.COLUMNS,
    "w1": Split.ROWS,
    "w3": Split.ROWS,
    "w2": Split.COLUMNS,
    "lm_head": Split.ROWS,
    "fc": Split.NONE,
}
"""Division of matrices by the last part of their names, as in Megatron-LM. A rank has whole heads,
a share of the feed-forward part (of each expert too), and a share of the vocabulary. Every rank has
norms and routers whole."""


@dataclass(frozen=True)
class Placement:
    """Device, division and types of a model's weights."""

    device: torch.device = CPU
    group: Group = SOLO
    slots: SlotShape | None = None
    """Size of the adapter slots; None: there are no adapters."""
    weights: WeightDType = "auto"
    """Type that matrices are converted to."""
    pages: KvCacheDtype = "auto"
    """Type that keys and values have in the KV pool."""
    context_tokens: int | None = None
    """Longest context that is served; None: the model's."""

    @property
    def shard(self) -> Shard:
        return Shard(self.group.rank, self.group.size)


WHOLE_ON_CPU: Final = Placement()


@dataclass(frozen=True)
class Reader:
    """Reads tensors of one model from a checkpoint, as one type, to one place."""

    spec: ModelSpec
    weights: WeightSource
    dtype: torch.dtype
    placement: Placement

    def norm(self, name: str, size: int) -> Tensor:
        """The weights [size] of a norm, as stored: see `true_norm`."""
        whole = self.placement.shard.part((size,), Split.NONE)
        dtype = torch.float32 if self.spec.variant.offset_norms else self.dtype
        return self.weights.read(f"{name}.weight", whole, dtype)

    def true_norm(self, norm: Tensor) -> Tensor:
        """The norm's true values, once the stored ones have been read."""
        return norm + 1 if self.spec.variant.offset_norms else norm

    def matrix(self, name: str, out: int, width: int) -> Tensor:
        """Matrix [out, width]: this rank's part."""
        return self._read(name, (out, width), SPLITS[name.rpartition(".")[2]])

    def fused(self, name: str, outs: Sequence[int], width: int) -> Iterator[Tensor]:
        """Matrices [out, width] that are one in the checkpoint, one below the other: this rank's
        part of each."""
        whole, begin = (sum(outs), width), 0
        for out in outs:
            own = self.placement.shard.part((out, width), Split.ROWS)
            part = Part(whole, 0, begin + own.begin, own.length)
            yield self.weights.read(f"{name}.weight", part, self.dtype)
            begin += out

    def row_norm(self, name: str, size: int) -> Tensor:
        """Weights [size] of a norm over what all ranks have: this rank's part."""
        return self._read(name, (size,), Split.ROWS)

    def bias(self, name: str, size: int) -> Tensor:
        """Bias [size] of the matrix of that name: this rank's part. Where ranks add their products
        up, the first one has all of it."""
        split = SPLITS[name.rpartition(".")[2]]
        if split is Split.COLUMNS:
            return self._added(self._read(name, (size,), Split.NONE, "bias"))
        return self._read(name, (size,), split, "bias")

    def sinks(self, name: str, heads: int) -> Tensor:
        """Attention sinks [heads]: this rank's part."""
        return self._read(name, (heads,), Split.ROWS, "sinks")

    def stack(self, name: str, shape: Shape, dim: int) -> Tensor:
        """A tensor that has something of each expert: this rank's part, along `dim`."""
        return self.weights.read(name, self.placement.shard.along(shape, dim), self.dtype)

    def stack_bias(self, name: str, shape: Shape) -> Tensor:
        """Biases [experts, out] of products that ranks add up: the first one has all of them."""
        whole = self.placement.shard.part(shape, Split.NONE)
        return self._added(self.weights.read(name, whole, self.dtype))

    def _added(self, bias: Tensor) -> Tensor:
        if self.placement.group.rank == 0:
            return bias
        self.weights.settle()  # nothing may write into its memory once it is free
        return torch.zeros_like(bias)

    def _read(self, name: str, shape: Shape, split: Split, kind: str = "weight") -> Tensor:
        part = self.placement.shard.part(shape, split)
        return self.weights.read(f"{name}.{kind}", part, self.dtype)


def read_layer(reader: Reader, prefix: str, width: int, index: int = 0) -> LayerWeights:
    """The layer that is called `prefix`; queries, keys and values have `width` inputs."""
    spec, variant, names = reader.spec, reader.spec.variant, reader.spec.variant.norms
    hidden, attention = spec.hidden_size, f"{prefix}.self_attn"
    q_size, kv_size = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}

    def norm(name: str | None) -> Tensor | None:
        return None if name is None else reader.norm(f"{prefix}.{name}", hidden)

    def qkv() -> Iterator[Tensor]:
        if variant.fused_qkv:
            return reader.fused(f"{attention}.qkv_proj", [*sizes.values()], width)
        return (reader.matrix(f"{attention}.{name}", size, width) for name, size in sizes.items())

    def biases() -> tuple[Tensor, ...]:
        return tuple(reader.bias(f"{attention}.{name}", size) for name, size in sizes.items())

    def qk_norms(read: Callable[[str, int], Tensor], query: int, key: int) -> tuple[Tensor, Tensor]:
        return read(f"{attention}.q_norm", query), read(f"{attention}.k_norm", key)

    attention_norm = norm(names.before_attention)
    query, key, value = qkv()
    dim, whole = spec.head_dim, variant.whole_qk_norm
    layer = LayerWeights(
        attention_norm=attention_norm,
        query=query,
        key=key,
        value=value,
        qkv_biases=biases() if variant.qkv_bias else None,
        head_norms=qk_norms(reader.norm, dim, dim) if variant.qk_norm else None,
        whole_norms=qk_norms(reader.row_norm, q_size, kv_size) if whole else None,
        output=reader.matrix(f"{attention}.o_proj", hidden, q_size),
        attention_post_norm=norm(names.after_attention),
        mlp_norm=norm(names.before_mlp),
        mlp=_mlp(reader, prefix, index),
        mlp_post_norm=norm(names.after_mlp),
        output_bias=reader.bias(f"{attention}.o_proj", hidden) if variant.output_bias else None,
        sinks=reader.sinks(attention, spec.heads) if variant.sinks else None,
    )
    reader.weights.settle()
    return _in_pair_order(_with_true_norms(layer, reader), spec)


def _with_true_norms(layer: LayerWeights, reader: Reader) -> LayerWeights:
    """A layer as it was read, with the true values of norms; that of queries includes their
    scale."""
    if not reader.spec.variant.offset_norms:
        return layer
    assert layer.head_norms is not None, "queries are scaled by their norm"
    query, key = layer.head_norms

    def true(norm: Tensor | None) -> Tensor | None:
        return None if norm is None else reader.true_norm(norm)

    return replace(
        layer,
        attention_norm=true(layer.attention_norm),
        attention_post_norm=true(layer.attention_post_norm),
        mlp_norm=true(layer.mlp_norm),
        mlp_post_norm=true(layer.mlp_post_norm),
        head_norms=(reader.true_norm(query) * reader.spec.query_scale, reader.true_norm(key)),
    )


def _in_pair_order(layer: LayerWeights, spec: ModelSpec) -> LayerWeights:
    """A layer as it was read, with queries and keys in the order of `pair_order`."""
    if (order := pair_order(spec.rope, spec.head_dim)) is None:
        return layer

    def both(norms: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
        return norms and (in_order(norms[0], order), in_order(norms[1], order))

    biases = layer.qkv_biases
    return replace(
        layer,
        query=in_order(layer.query, order),
        key=in_order(layer.key, order),
        qkv_biases=biases and (*(in_order(bias, order) for bias in biases[:2]), biases[2]),
        head_norms=both(layer.head_norms),
        whole_norms=both(layer.whole_norms),
    )


def _mlp(reader: Reader, prefix: str, layer: int) -> MlpWeights | ExpertsWeights:
    spec, experts, fused = reader.spec, reader.spec.experts, reader.spec.variant.fused_gate_up
    hidden = spec.hidden_size

    def gated(prefix: str, width: int, names: ExpertNames) -> MlpWeights:
        if fused:
            gate, up = reader.fused(f"{prefix}.gate_up_proj", [width, width], hidden)
        else:
            gate, up = (
                reader.matrix(f"{prefix}.{n}", width, hidden) for n in (names.gate, names.up)
            )
        return MlpWeights(gate, up, reader.matrix(f"{prefix}.{names.down}", hidden, width))

    if experts is None or layer not in experts.layers:
        return gated(f"{prefix}.mlp", spec.intermediate_size, ExpertNames())
    names = spec.variant.expert_names
    part = f"{prefix}.{names.part}"
    if spec.variant.fused_experts:
        return _fused_experts(reader, part, experts)
    return ExpertsWeights(
        router=reader.matrix(f"{part}.gate", experts.count, hidden),
        experts=[
            gated(f"{part}.experts.{number}", experts.width, names)
            for number in range(experts.count)
        ],
        active=experts.active,
        renormalised=experts.renormalised,
    )


def _fused_experts(reader: Reader, prefix: str, experts: Experts) -> ExpertsWeights:
    """Experts of a layer that has them all in tensors [experts, in, out], where outputs of gate and
    up alternate."""
    count, hidden, width = experts.count, reader.spec.hidden_size, experts.width
    name = f"{prefix}.experts"
    gate_up = reader.stack(f"{name}.gate_up_proj", (count, hidden, 2 * width), 2)
    gate_up_biases = reader.stack(f"{name}.gate_up_proj_bias", (count, 2 * width), 1)
    down = reader.stack(f"{name}.down_proj", (count, width, hidden), 1)
    down_biases = reader.stack_bias(f"{name}.down_proj_bias", (count, hidden))
    router = f"{prefix}.router"
    reader.weights.settle()
    gate_up_biases = torch.cat((gate_up_biases[:, 0::2], gate_up_biases[:, 1::2]), 1)
    return ExpertsWeights(
        router=reader.matrix(router, count, hidden),
        experts=[
            MlpWeights(
                gate=gate_up[number, :, 0::2].T,
                up=gate_up[number, :, 1::2].T,
                down=down[number].T,
                biases=(gate_up_biases[number], down_biases[number]),
            )
            for number in range(count)
        ],
        active=experts.active,
        renormalised=experts.renormalised,
        router_bias=reader.bias(router, count),
    )
