"""Low-rank additions to matrices (LoRA): y = x W^T + (x A^T) B^T, where A and B are from each
token's adapter.

A step's adapters are in slots, padded to equal rank. The product with A is computed for all tokens
and slots; where a slot is not the token's, it is set to zero before the product with B. So shapes
do not depend on which tokens use which adapter, nothing is read back from a device, and graphs can
be captured. That costs little, since slots x rank is small compared with a matrix's width. Knows no
file
and no request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.layers.dense import Linear
from sluice_runtime.layers.packed import Matrix

NO_SLOT: Final = -1
"""Slot number of a token without an adapter."""


class MatrixPlace(NamedTuple):
    """A matrix of the checkpoint: a layer, and a field of `layers.stack.LayerWeights`."""

    layer: int
    field: str


class Pair(NamedTuple):
    """Matrices A and B of one adapter for one matrix: this rank's part, scaled."""

    a: Tensor
    """[r, in]."""
    b: Tensor
    """[out, r]."""


@dataclass(frozen=True)
class SlotShape:
    """Sizes of the slots."""

    slots: int
    rank: int
    max_tokens: int
    """Maximum tokens of a step."""


class AdapterBank:
    """The slots of all matrices of a model."""

    def __init__(
        self,
        shape: SlotShape,
        dtype: torch.dtype,
        device: torch.device,
        head_order: Tensor | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.head_order = head_order
        """Order of the numbers of a query and of a key: see `layers.rope.pair_order`."""
        self.used = shape.slots
        """Number of slots that the step computes, the first ones; 0: no token has an adapter."""
        self.foreign = torch.ones((shape.max_tokens, shape.slots), dtype=torch.bool, device=device)
        """Whether a token of the step does not have this slot: [max_tokens, slots]."""
        self._numbers = torch.arange(shape.slots, device=device)
        self._parts: dict[MatrixPlace, tuple[AdaptedLinear, int]] = {}

    def adapted(self, multiply: Linear, layer: int, weights: Mapping[str, Matrix]) -> Linear:
        """The product with adapters' additions. `multiply` is the product with `weights` [out, in],
        by field, joined in this order."""
        linear = AdaptedLinear(multiply, self, [tuple(w.shape) for w in weights.values()])
        for index, field in enumerate(weights):
            self._parts[MatrixPlace(layer, field)] = linear, index
        return linear

    def shapes(self) -> Iterator[tuple[MatrixPlace, tuple[int, int]]]:
        """Every matrix that takes adapters, with this rank's [out, in]."""
        for place, (linear, part) in self._parts.items():
            yield place, linear.shapes[part]

    def place(self, slot: int, pairs: Mapping[MatrixPlace, Pair]) -> None:
        """Puts an adapter into a slot from the next step on. Matrices without a pair are not
        changed."""
        for place, (linear, part) in self._parts.items():
            linear.place(slot, part, pairs.get(place))

    def use(self, slots: Tensor, used: int) -> None:
        """Sets the slot of each token of the next step: slots [n], NO_SLOT without an adapter. All
        are below `used`."""
        self.used = used
        torch.ne(slots[:, None], self._numbers, out=self.foreign[: len(slots)])

    def use_none(self, tokens: int) -> None:
        """Prepares for a step of `tokens` tokens without adapters."""
        self.used = 0
        self.foreign[:tokens].fill_(True)  # graphs compute all slots, whatever `used` is

    def use_all(self) -> None:
        """Makes steps compute all slots, whichever slots their tokens use, as a captured graph
        must."""
        self.used = self.shape.slots


class AdaptedLinear:
    """One or several matrices of a checkpoint, joined, with adapters: see `layers.dense.Linear`."""

    def __init__(
        self, multiply: Linear, bank: AdapterBank, shapes: Sequence[tuple[int, ...]]
    ) -> None:
        slots, rank = bank.shape.slots, bank.shape.rank
        self.shapes = [(out, width) for out, width in shapes]
        self._multiply = multiply
        self._bank = bank
        width = self.shapes[0][1]
        self._a = torch.zeros(
            (slots, len(shapes), rank, width), dtype=bank.dtype, device=bank.device
        )
        self._b = [
            torch.zeros((slots, rank, out), dtype=bank.dtype, device=bank.device)
            for out, _ in self.shapes
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] → [n, out]."""
        y, used = self._multiply(x), self._bank.used
        if not used:
            return y
        n, parts, rank = len(x), len(self._b), self._bank.shape.rank
        inner = F.linear(x, self._a[:used].flatten(0, 2)).view(n, used, parts, rank)
        inner.masked_fill_(self._bank.foreign[:n, :used, None, None], 0)
        begin = 0
        for part, b in enumerate(self._b):
            end = begin + b.shape[2]
            y[:, begin:end].addmm_(inner[:, :, part].flatten(1), b[:used].flatten(0, 1))
            begin = end
        return y

    def place(self, slot: int, part: int, pair: Pair | None) -> None:
        """Puts a pair into a slot of one part: see `AdapterBank.place`."""
        a, b = self._a[slot, part], self._b[part][slot]
        rank = 0 if pair is None else len(pair.a)
        a[rank:].zero_()
        b[rank:].zero_()
        if pair is not None:
            a[:rank].copy_(pair.a, non_blocking=True)
            b[:rank].copy_(pair.b.T, non_blocking=True)
