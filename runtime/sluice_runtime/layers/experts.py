"""A feed-forward part of experts, of which a router chooses a few for each token. Knows no model.

Shapes: n tokens of a step; h hidden size; e experts, k of them active for a token; w their width.

A CPU computes each expert for the tokens that chose it. The host does not wait for a GPU, so there
it never knows how many these are: one call of torch's grouped product computes all experts, which
is a kernel for bfloat16 from Hopper on. Elsewhere every expert computes every token, e / k times
the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.layers.dense import Activation, Linear, Multiply, linear
from sluice_runtime.layers.stack import ExpertsWeights

GroupedLinear = Callable[[Tensor, Tensor], Tensor]
"""[m, in], in the order of the experts, and how many each has, [e] → [m, out]."""
_HOPPER: Final = (9, 0)


def experts(weights: ExpertsWeights, activation: Activation, multiply: Multiply = linear) -> Linear:
    """[n, h] → [n, h]; of a rank that has a part of each expert, its part of the sum. `multiply`:
    of an expert's matrices, where each has its own product."""
    parts = weights.experts
    gate_up_biases, down_biases = zip(*(part.biases for part in parts), strict=True)
    gate_up = Products([torch.cat((part.gate, part.up)) for part in parts], gate_up_biases)
    down = Products([part.down for part in parts], down_biases)
    if weights.router.device.type == "cpu":
        parts_of = looped(gate_up, multiply), looped(down, multiply)
        return SortedExperts(weights, *parts_of, activation)
    if can_group(weights.router):
        return SortedExperts(weights, in_one_call(gate_up), in_one_call(down), activation)
    return EveryExpert(weights, gate_up, down, activation)


def can_group(weight: Tensor) -> bool:
    """Whether torch has a kernel for grouped products of that type on that device: otherwise it
    reads the groups' sizes on the host."""
    if weight.dtype != torch.bfloat16 or torch.version.hip is not None:
        return False
    return torch.cuda.is_available() and torch.cuda.get_device_capability(weight.device) >= _HOPPER


@dataclass(frozen=True)
class Choice:
    """What the router chose."""

    experts: Tensor
    """[n, k]."""
    shares: Tensor
    """[n, k], of the sum, in the type of the tokens."""


def chosen(x: Tensor, weights: ExpertsWeights) -> Choice:
    """For tokens [n, h]; probabilities are computed in float32."""
    probabilities = F.linear(x, weights.router, weights.router_bias).softmax(
        -1, dtype=torch.float32
    )
    shares, best = probabilities.topk(weights.active, dim=-1)
    if weights.renormalised:
        shares = shares / shares.sum(-1, keepdim=True)
    return Choice(best, shares.to(x.dtype))


@dataclass(frozen=True)
class Products:
    """One matrix of each expert."""

    weights: Sequence[Tensor]
    """[out, in]"""
    biases: Sequence[Tensor | None]
    """[out]; all experts have one, or none."""

    def each(self, multiply: Multiply) -> list[Linear]:
        return [multiply(*own) for own in zip(self.weights, self.biases, strict=True)]


def looped(matrices: Products, multiply: Multiply = linear) -> GroupedLinear:
    """A product for each expert that has tokens; the host reads how many."""
    products = matrices.each(multiply)

    def apply(x: Tensor, counts: Tensor) -> Tensor:
        groups = zip(products, torch.split(x, counts.tolist()), strict=True)
        return torch.cat([product(own) for product, own in groups if len(own)])

    return apply


def in_one_call(matrices: Products) -> GroupedLinear:
    """All products in one kernel."""
    stacked = torch.stack(tuple(matrices.weights)).transpose(1, 2)
    biases = [bias for bias in matrices.biases if bias is not None]
    bias = torch.stack(biases) if biases else None

    def apply(x: Tensor, counts: Tensor) -> Tensor:
        product = F.grouped_mm(x, stacked, offs=counts.cumsum(0, dtype=torch.int32))
        if bias is None:
            return product
        return product.add_(bias.repeat_interleave(counts, 0, output_size=len(x)))

    return apply


@dataclass(frozen=True)
class SortedExperts:
    """Each token once for each of its experts, in the order of the experts."""

    weights: ExpertsWeights
    gate_up: GroupedLinear
    down: GroupedLinear
    activation: Activation

    def __call__(self, x: Tensor) -> Tensor:
        choice = chosen(x, self.weights)
        flat = choice.experts.flatten()
        order = flat.argsort(stable=True)
        counts = flat.new_zeros(len(self.weights.experts))
        counts.scatter_add_(0, flat, torch.ones_like(flat))
        inner = self.activation(self.gate_up(x[order // self.weights.active], counts))
        products = self.down(inner, counts)
        del inner
        # Back in the order of tokens, so that a sum does not depend on who else is in the step.
        products = products[order.argsort()].view(*choice.shares.shape, -1)
        return (choice.shares[:, None] @ products).squeeze(1)


class EveryExpert:
    """All experts for all tokens, with a share of zero where a token did not choose one."""

    def __init__(
        self,
        weights: ExpertsWeights,
        gate_up: Products,
        down: Products,
        activation: Activation,
    ) -> None:
        self._weights = weights
        self._gate_up = gate_up.each(linear)
        self._down = down.each(linear)
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        choice = chosen(x, self._weights)
        shares = x.new_zeros(len(x), len(self._down)).scatter_(1, choice.experts, choice.shares)
        total = torch.zeros_like(x)
        for own, gate_up, down in zip(shares.unbind(1), self._gate_up, self._down, strict=True):
            total.addcmul_(down(self._activation(gate_up(x))), own[:, None])
        return total
