"""Reads this rank's part of tensors, by their names in checkpoints.

Knows no layer; a `Family` says which tensors a layer has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from sluice_contract.config.engine import KvCacheDtype, WeightDType
from sluice_kernels.packed import PackedMatrix
from torch import Tensor

from sluice_runtime.kv.pool import CPU
from sluice_runtime.layers.adapters import SlotShape
from sluice_runtime.layers.packed import Matrix, can_pack
from sluice_runtime.layers.rope import in_order, pair_order
from sluice_runtime.layers.stack import LayerWeights
from sluice_runtime.model.shard import Shape, Shard, Split, TensorPart
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.model.weights import WeightSource
from sluice_runtime.parallel.group import SOLO, Group

SPLITS: Final[Mapping[str, Split]] = {
    "embed_tokens": Split.ROWS,
    "q_proj": Split.ROWS,
    "k_proj": Split.KEYS,
    "v_proj": Split.KEYS,
    "o_proj": Split.COLUMNS,
    "gate": Split.NONE,
    "router": Split.NONE,
    "gate_proj": Split.GATED,
    "up_proj": Split.GATED,
    "down_proj": Split.DOWN,
    "w1": Split.GATED,
    "w3": Split.GATED,
    "w2": Split.DOWN,
    "lm_head": Split.ROWS,
    "fc": Split.NONE,
}
"""Division of matrices by the last part of their names, as in Megatron-LM. A rank has whole heads,
a share of the feed-forward part (or of each expert), and a share of the vocabulary. Every rank has
all of the norms and routers."""


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
    def packs(self) -> bool:
        """Whether quantised matrices stay packed, where the model has a packing."""
        return can_pack(self.device)

    def shard(self, spec: ModelSpec) -> Shard:
        """This rank's share of a model's tensors."""
        rank, size = self.group.rank, self.group.size
        unit = spec.packing.unit if spec.packing and self.packs else 1
        return Shard(rank, size, spec.key_copies(size), unit)


WHOLE_ON_CPU: Final = Placement()


@dataclass(frozen=True)
class Reader:
    """Reads a model's tensors from a checkpoint, in one type, to one device."""

    spec: ModelSpec
    weights: WeightSource
    dtype: torch.dtype
    placement: Placement
    packed: Callable[[str, TensorPart], PackedMatrix | None] | None = None
    """`QuantisedWeights.read_packed`; None: all matrices become tensors."""

    @property
    def _shard(self) -> Shard:
        return self.placement.shard(self.spec)

    def norm(self, name: str, size: int, dtype: torch.dtype | None = None) -> Tensor:
        """Weights [size] of a norm, as `dtype` or as the other tensors."""
        whole = self._shard.part((size,), Split.NONE)
        return self.weights.read(f"{name}.weight", whole, dtype or self.dtype)

    def table(self, name: str, out: int, width: int) -> Tensor:
        """Matrix [out, width] that is never packed: this rank's part."""
        return self._read(name, (out, width), SPLITS[name.rpartition(".")[2]])

    def matrix(self, name: str, out: int, width: int) -> Matrix:
        """Matrix [out, width] of a layer: this rank's part."""
        split = SPLITS[name.rpartition(".")[2]]
        return self._matrix(f"{name}.weight", self._shard.part((out, width), split))

    def _matrix(self, name: str, part: TensorPart) -> Matrix:
        matrix = None if self.packed is None else self.packed(name, part)
        return self.weights.read(name, part, self.dtype) if matrix is None else matrix

    def fused(self, name: str, outs: Mapping[str, int], width: int) -> Iterator[Matrix]:
        """This rank's part of each of several matrices [out, width], which the checkpoint stores as
        one, stacked by outputs. `outs`: outputs by the names that the matrices have apart."""
        whole, begin = (sum(outs.values()), width), 0
        for matrix, out in outs.items():
            own = self._shard.part((out, width), SPLITS[matrix])
            part = TensorPart(whole, 0, begin + own.begin, own.length)
            yield self._matrix(f"{name}.weight", part)
            begin += out

    def row_norm(self, name: str, matrix: str, size: int) -> Tensor:
        """This rank's part of the weights [size] of a norm over all ranks' outputs of `matrix`."""
        return self._read(name, (size,), SPLITS[matrix])

    def bias(self, name: str, size: int) -> Tensor:
        """This rank's part of the bias [size] of the matrix `name`. If the ranks' products are
        summed, the first rank has the whole bias and others have none."""
        split = SPLITS[name.rpartition(".")[2]]
        if split.is_by_inputs:
            return self._added(self._read(name, (size,), Split.NONE, "bias"))
        return self._read(name, (size,), split, "bias")

    def sinks(self, name: str, heads: int) -> Tensor:
        """Attention sinks [heads]: this rank's part."""
        return self._read(name, (heads,), Split.ROWS, "sinks")

    def stack(self, name: str, shape: Shape, dim: int, outputs: int = 1) -> Tensor:
        """This rank's part of a tensor that stacks all experts: see `Shard.inner`."""
        return self.weights.read(name, self._shard.inner(shape, dim, outputs), self.dtype)

    def matrices(self, name: str, shape: Shape, dim: int, outputs: int = 1) -> Matrix:
        """Matrices [experts, out, in]: this rank's part of a tensor of `shape` [experts, in, out],
        see `Shard.inner`."""
        matrix = self._matrix(name, self._shard.inner(shape, dim, outputs))
        return matrix if isinstance(matrix, PackedMatrix) else matrix.transpose(1, 2)

    def stack_bias(self, name: str, shape: Shape) -> Tensor:
        """Biases [experts, out] of products that are summed over ranks: the first rank has them
        whole."""
        whole = self._shard.part(shape, Split.NONE)
        return self._added(self.weights.read(name, whole, self.dtype))

    def _added(self, bias: Tensor) -> Tensor:
        if self.placement.group.rank == 0:
            return bias
        self.weights.settle()  # no pending read may write into its memory after it is freed
        return torch.zeros_like(bias)

    def _read(self, name: str, shape: Shape, split: Split, kind: str = "weight") -> Tensor:
        part = self._shard.part(shape, split)
        return self.weights.read(f"{name}.{kind}", part, self.dtype)


def in_pair_order(layer: LayerWeights, spec: ModelSpec) -> LayerWeights:
    """A layer with its queries and keys reordered by `pair_order`."""
    if (order := pair_order(spec.rope, spec.head_dim)) is None:
        return layer

    def ordered(matrix: Matrix) -> Matrix:
        if isinstance(matrix, Tensor):
            return in_order(matrix, order)
        return matrix[in_order(torch.arange(matrix.shape[0], device=matrix.device), order)]

    def both(norms: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
        return norms and (in_order(norms[0], order), in_order(norms[1], order))

    biases = layer.qkv_biases
    return replace(
        layer,
        query=ordered(layer.query),
        key=ordered(layer.key),
        qkv_biases=biases and (*(in_order(bias, order) for bias in biases[:2]), biases[2]),
        head_norms=both(layer.head_norms),
        whole_norms=both(layer.whole_norms),
    )
