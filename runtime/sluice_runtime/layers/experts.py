"""Feed-forward part with experts: a router chooses a few of them for each token. Knows no model.

Shapes: n tokens of a step; h hidden size; e experts, k of them active for a token; w their width.

A CPU computes each expert for the tokens that chose it. On a GPU the host does not wait, so it does
not know how many tokens chose an expert. There a few kernels compute all experts, of packed or of
plain weights. Without these kernels every expert computes every token, e / k times the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from sluice_kernels.packed import Grouping, Kind, PackedMatrix
from torch import Tensor

from sluice_runtime.layers.dense import Activation, ClampedSwiglu, Linear, Multiply, linear
from sluice_runtime.layers.packed import Kernels, Matrix, can_pack, joined, kernels_on
from sluice_runtime.layers.stack import ExpertsWeights

GroupedLinear = Callable[[Tensor, Tensor], Tensor]
"""Function: (inputs [m, in] sorted by expert, token counts of the experts [e]) → [m, out]."""
ALIGNED_INPUTS: Final = 16
"""Divisor of the inputs of plain matrices that the kernels read."""


def experts(weights: ExpertsWeights, activation: Activation, multiply: Multiply = linear) -> Linear:
    """Makes the feed-forward part, [n, h] → [n, h]; on a rank with a slice of each expert, the
    result is its part of the sum. `multiply`: makes the product with an expert's matrix, if each
    has its own. The result keeps no tensor of `weights` that was joined or packed."""
    parts, router = weights.experts, Router.of(weights)
    gate_up_biases, down_biases = zip(*(part.biases for part in parts), strict=True)
    gate_up = Products([(part.gate, part.up) for part in parts], gate_up_biases)
    down = Products([(part.down,) for part in parts], down_biases)
    if gate_up.any_packed or down.any_packed or can_fuse(weights):
        return fused(router, gate_up, down, activation)
    if weights.router.device.type == "cpu":
        return SortedExperts(router, looped(gate_up, multiply), looped(down, multiply), activation)
    return EveryExpert(router, gate_up, down, activation)


def can_fuse(weights: ExpertsWeights) -> bool:
    """Whether there are kernels for experts of plain weights on their device."""
    router, first = weights.router, weights.experts[0]
    has_kernels = can_pack(router.device) and router.dtype.itemsize == 2
    widths = first.gate.shape[1], first.down.shape[1]
    return has_kernels and not any(width % ALIGNED_INPUTS for width in widths)


@dataclass(frozen=True)
class Router:
    """Router that chooses experts: `ExpertsWeights` without the experts."""

    weight: Tensor
    """[e, h]."""
    bias: Tensor | None
    """[e]."""
    active: int
    renormalised: bool

    @classmethod
    def of(cls, weights: ExpertsWeights) -> Router:
        return cls(weights.router, weights.router_bias, weights.active, weights.renormalised)


@dataclass(frozen=True)
class ExpertChoice:
    """Experts that the router chose for each token."""

    experts: Tensor
    """Experts [n, k]."""
    shares: Tensor
    """Shares [n, k] of the sum, in the type of the tokens."""


def chosen(x: Tensor, router: Router) -> ExpertChoice:
    """The choice for tokens [n, h]; probabilities are computed in float32."""
    probabilities = F.linear(x, router.weight, router.bias).softmax(-1, dtype=torch.float32)
    shares, best = probabilities.topk(router.active, dim=-1)
    if router.renormalised:
        shares = shares / shares.sum(-1, keepdim=True)
    return ExpertChoice(best, shares.to(x.dtype))


@dataclass(frozen=True)
class Products:
    """One matrix of each expert."""

    weights: Sequence[tuple[Matrix, ...]]
    """Matrix [out, in] of each expert, or its parts, to be stacked by outputs; parts have equal
    shapes in all experts."""
    biases: Sequence[Tensor | None]
    """Bias [out] of each expert; either all experts have one or none has."""

    @property
    def any_packed(self) -> bool:
        return any(isinstance(part, PackedMatrix) for parts in self.weights for part in parts)

    def each(self, multiply: Multiply) -> list[Linear]:
        own = zip(self.weights, self.biases, strict=True)
        return [multiply(joined(parts), bias) for parts, bias in own]

    def stacked(self) -> tuple[PackedMatrix, Tensor | None]:
        """Matrices [e, out, in] and biases [e, out]; plain if not all matrices are packed."""
        own = joined([matrix for parts in self.weights for matrix in parts])
        if isinstance(own, Tensor):
            own = PackedMatrix(Kind.PLAIN, own.contiguous())
        biases = [bias for bias in self.biases if bias is not None]
        count = len(self.biases)
        stacked = own.view(count, own.shape[0] // count)
        return stacked, torch.stack(biases) if biases else None


def looped(matrices: Products, multiply: Multiply = linear) -> GroupedLinear:
    """A product for each expert that has tokens; the host reads the counts."""
    products = matrices.each(multiply)

    def apply(x: Tensor, counts: Tensor) -> Tensor:
        groups = zip(products, torch.split(x, counts.tolist()), strict=True)
        return torch.cat([product(own) for product, own in groups if len(own)])

    return apply


@dataclass(frozen=True)
class SortedExperts:
    """Computes each token once for each of its experts, in the order of the experts."""

    router: Router
    gate_up: GroupedLinear
    down: GroupedLinear
    activation: Activation

    def __call__(self, x: Tensor) -> Tensor:
        choice = chosen(x, self.router)
        flat = choice.experts.flatten()
        order = flat.argsort(stable=True)
        counts = flat.new_zeros(len(self.router.weight))
        counts.scatter_add_(0, flat, torch.ones_like(flat))
        inner = self.activation(self.gate_up(x[order // self.router.active], counts))
        products = self.down(inner, counts)
        del inner
        # Back in the order of tokens, so that sums do not depend on other tokens in the step.
        products = products[order.argsort()].view(*choice.shares.shape, -1)
        return (choice.shares[:, None] @ products).squeeze(1)


@dataclass(frozen=True)
class FusedExperts:
    """`SortedExperts` in at most eight kernels on a GPU, without a wait of the host."""

    router: Router
    gate_up: PackedMatrix
    down: PackedMatrix
    biases: tuple[Tensor | None, Tensor | None]
    """Biases [e, out] of both."""
    activation: Activation
    kernels: Kernels

    def __call__(self, x: Tensor) -> Tensor:
        router, kernels, top = self.router, self.kernels, self.router.active
        logits = F.linear(x, router.weight, router.bias)
        best, shares = kernels.choose_experts(logits, top, router.renormalised)
        order, counts = kernels.sort_by_expert(best, len(router.weight))
        by_token = Grouping(counts, reads=order, top=top)
        gate_up = kernels.packed_product(x, self.gate_up, self.biases[0], by_token)
        inner = self.activation(gate_up)
        del gate_up
        # Back in the order of tokens, so that sums do not depend on other tokens in the step.
        in_place = Grouping(counts, writes=order)
        products = kernels.packed_product(inner, self.down, self.biases[1], in_place)
        del inner
        return (shares[:, None] @ products.view(len(x), top, -1)).squeeze(1)


def fused(router: Router, gate_up: Products, down: Products, activation: Activation) -> Linear:
    """A part of experts that few kernels compute."""
    kernels = kernels_on(router.weight.device)
    (up, up_biases), (own_down, down_biases) = gate_up.stacked(), down.stacked()
    if isinstance(activation, ClampedSwiglu):
        alpha, limit = activation.alpha, activation.limit
        activation = partial(kernels.clamped_swiglu, alpha=alpha, limit=limit)
    biases = up_biases, down_biases
    return FusedExperts(router, up, own_down, biases, activation, kernels)


class EveryExpert:
    """Computes all experts for all tokens; experts that a token did not choose have a share of
    zero."""

    def __init__(
        self,
        router: Router,
        gate_up: Products,
        down: Products,
        activation: Activation,
    ) -> None:
        self._router = router
        self._gate_up = gate_up.each(linear)
        self._down = down.each(linear)
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        choice = chosen(x, self._router)
        shares = x.new_zeros(len(x), len(self._down)).scatter_(1, choice.experts, choice.shares)
        total = torch.zeros_like(x)
        for own, gate_up, down in zip(shares.unbind(1), self._gate_up, self._down, strict=True):
            total.addcmul_(down(self._activation(gate_up(x))), own[:, None])
        return total
