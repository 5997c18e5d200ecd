"""All ways to compute experts agree with a token after the other, whoever chose whom."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from sluice_kernels import reference
from sluice_kernels.packed import Grouping, Kind, PackedMatrix
from sluice_runtime.layers.dense import Activation, ClampedSwiglu, Linear, silu_and_multiply
from sluice_runtime.layers.experts import (
    EveryExpert,
    FusedExperts,
    Products,
    Router,
    SortedExperts,
    can_fuse,
    chosen,
    experts,
    fused,
    looped,
)
from sluice_runtime.layers.packed import as_tensor
from sluice_runtime.layers.stack import ExpertsWeights, MlpWeights
from torch import Tensor
from torch.nn.functional import linear, silu

from tests.kernels.packed_matrices import packed_matrix
from tests.runtime.recorded_graph import capture, kernel, launches

HIDDEN, WIDTH, COUNT, ACTIVE = 32, 16, 6, 2
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture
def draw() -> Callable[..., Tensor]:
    torch.manual_seed(3)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(shape) / math.sqrt(shape[-1])

    return matrix


def weights_of(
    draw: Callable[..., Tensor], dtype: torch.dtype, renormalised: bool, biased: bool = False
) -> ExpertsWeights:
    def matrix(*shape: int) -> Tensor:
        return draw(*shape).to(dtype)

    def bias(size: int) -> Tensor | None:
        return matrix(size) * 8 if biased else None

    parts = [
        MlpWeights(
            matrix(WIDTH, HIDDEN),
            matrix(WIDTH, HIDDEN),
            matrix(HIDDEN, WIDTH),
            (bias(2 * WIDTH), bias(HIDDEN)),
        )
        for _ in range(COUNT)
    ]
    return ExpertsWeights(matrix(COUNT, HIDDEN) * 4, parts, ACTIVE, renormalised, bias(COUNT))


def one_by_one(x: Tensor, weights: ExpertsWeights) -> Tensor:
    """In float64, from the choice that the router makes."""
    choice, rows = chosen(x, Router.of(weights)), []
    for token, best, shares in zip(x.double(), choice.experts, choice.shares, strict=True):
        parts = [weights.experts[int(one)] for one in best]
        made = [made_by(token, part) for part in parts]
        rows.append(sum(share.double() * one for share, one in zip(shares, made, strict=True)))
    return torch.stack(rows)


def made_by(token: Tensor, part: MlpWeights) -> Tensor:
    zero = torch.zeros(1).double()
    joined, down = (zero if bias is None else bias.double() for bias in part.biases)
    gate, up = joined.expand(2 * WIDTH).chunk(2)
    gate = gate + linear(token, as_tensor(part.gate, torch.float64))
    up = up + linear(token, as_tensor(part.up, torch.float64))
    return linear(silu(gate) * up, as_tensor(part.down, torch.float64)) + down


def sorted_by(group: Callable[[Products], object]) -> Callable[[ExpertsWeights], Linear]:
    def make(weights: ExpertsWeights) -> Linear:
        gate_up, down = joined(weights)
        return SortedExperts(Router.of(weights), group(gate_up), group(down), silu_and_multiply)  # type: ignore[arg-type]

    return make


def joined(weights: ExpertsWeights) -> tuple[Products, Products]:
    parts = weights.experts
    return (
        Products([(p.gate, p.up) for p in parts], [p.biases[0] for p in parts]),
        Products([(p.down,) for p in parts], [p.biases[1] for p in parts]),
    )


WAYS: dict[str, Callable[[ExpertsWeights], Linear]] = {
    "as on this device": lambda weights: experts(weights, silu_and_multiply),
    "looped": sorted_by(looped),
    "fused": lambda weights: fused(Router.of(weights), *joined(weights), silu_and_multiply),
    "every expert": lambda weights: EveryExpert(
        Router.of(weights), *joined(weights), silu_and_multiply
    ),
}


@pytest.mark.parametrize("renormalised", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_all_ways_agree(
    way: str, dtype: torch.dtype, renormalised: bool, draw: Callable[..., Tensor]
) -> None:
    weights = weights_of(draw, dtype, renormalised, biased=renormalised)
    for tokens in (1, 2, 37):
        x = draw(tokens, HIDDEN).to(dtype) * 6
        wanted = one_by_one(x, weights)
        made = WAYS[way](weights)(x)
        assert made.dtype is dtype
        assert (made - wanted).norm() <= TOLERANCE[dtype] * wanted.norm()


def packed_weights(draw: Callable[..., Tensor], kind: Kind, bias: bool = True) -> ExpertsWeights:
    """Gate and up are packed; down only in FP8, as its inputs are fewer than those of a block."""
    plain = weights_of(draw, torch.float32, renormalised=bias, biased=bias)
    parts = [
        MlpWeights(
            packed_matrix(kind, WIDTH, HIDDEN),
            packed_matrix(kind, WIDTH, HIDDEN),
            packed_matrix(kind, HIDDEN, WIDTH, group=WIDTH) if kind is Kind.FP8 else part.down,
            part.biases,
        )
        for part in plain.experts
    ]
    return replace(plain, experts=parts)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [Kind.FP8, Kind.INT4, Kind.MXFP4])
def test_packed_experts_agree(kind: Kind, bias: bool, draw: Callable[..., Tensor]) -> None:
    weights = packed_weights(draw, kind, bias)
    x = draw(37, HIDDEN)
    wanted = one_by_one(x, weights)
    made = experts(weights, silu_and_multiply)(x)
    assert (made - wanted).norm() <= 1e-5 * wanted.norm()


@pytest.mark.parametrize("names", [("down",), ("gate",), ("gate", "up")], ids="-".join)
def test_each_matrix_is_packed_or_not(names: tuple[str, ...], draw: Callable[..., Tensor]) -> None:
    """As where modules_to_not_convert names the others."""
    packed = packed_weights(draw, Kind.FP8)
    plain = weights_of(draw, torch.float32, renormalised=True, biased=True).experts
    parts = [
        replace(part, **{name: getattr(own, name) for name in names})
        for part, own in zip(plain, packed.experts, strict=True)
    ]
    for mixed in (parts, [*plain[:-1], parts[-1]]):  # in all experts, or in one
        weights, x = replace(packed, experts=mixed), draw(37, HIDDEN)
        wanted = one_by_one(x, weights)
        part = experts(weights, silu_and_multiply)
        assert isinstance(part, FusedExperts)
        assert (part(x) - wanted).norm() <= 1e-5 * wanted.norm()


class OneLaunchEach:
    """Kernels as a GPU has them: each is one launch, and part of a captured graph."""

    def packed_product(
        self,
        x: Tensor,
        matrix: PackedMatrix,
        bias: Tensor | None = None,
        grouping: Grouping | None = None,
    ) -> Tensor:
        rows = len(x) if grouping is None or grouping.reads is None else len(grouping.reads)
        out = x.new_empty(rows, matrix.shape[-2])
        launch([out], lambda: [reference.packed_product(x, matrix, bias, grouping)])
        return out

    def choose_experts(self, logits: Tensor, top: int, renormalised: bool) -> tuple[Tensor, Tensor]:
        shares = logits.new_empty(len(logits), top)
        best = shares.new_empty(shares.shape, dtype=torch.int32)
        launch([best, shares], lambda: reference.choose_experts(logits, top, renormalised))
        return best, shares

    def sort_by_expert(self, chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
        order, counts = chosen.new_empty(chosen.numel()), chosen.new_empty(experts)
        launch([order, counts], lambda: reference.sort_by_expert(chosen, experts))
        return order, counts

    def clamped_swiglu(self, gate_up: Tensor, alpha: float, limit: float) -> Tensor:
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        launch([out], lambda: [reference.clamped_swiglu(gate_up, alpha, limit)])
        return out


def launch(outs: Sequence[Tensor], make: Callable[[], Sequence[Tensor]]) -> None:
    def run() -> None:
        for out, made in zip(outs, make(), strict=True):
            out.copy_(made)

    kernel(run)


@pytest.mark.parametrize("activation", [silu_and_multiply, ClampedSwiglu(1.7, 7.0)])
def test_packed_experts_are_few_launches_and_captured_in_graphs(
    activation: Activation, draw: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Router, choice, order, two products, activation and sum; silu in plain torch is two."""
    kernels = OneLaunchEach()
    monkeypatch.setattr("sluice_runtime.layers.experts.kernels_on", lambda device: kernels)
    part = experts(packed_weights(draw, Kind.MXFP4), activation)
    x, out = draw(7, HIDDEN), torch.zeros(7, HIDDEN)

    def step() -> None:
        out.copy_(part(x))

    counted = launches(step)
    assert sum(counted.values()) - counted["copy_"] <= 8, counted
    replay = capture(step)
    x.copy_(draw(7, HIDDEN))
    replay()
    assert torch.equal(out, part(x))


def test_shares_add_up_to_one_only_where_they_are_renormalised(draw: Callable[..., Tensor]) -> None:
    x = draw(5, HIDDEN)
    for renormalised in (True, False):
        choice = chosen(x, Router.of(weights_of(draw, torch.float32, renormalised)))
        assert torch.allclose(choice.shares.sum(-1), torch.ones(5)) == renormalised


def test_experts_are_fused_on_gpus_whose_kernels_read_them(
    draw: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = weights_of(draw, torch.bfloat16, renormalised=True)
    assert not can_fuse(plain)
    monkeypatch.setattr("sluice_runtime.layers.experts.can_pack", lambda device: True)
    assert can_fuse(plain)
    assert isinstance(experts(plain, silu_and_multiply), FusedExperts)
    assert not can_fuse(weights_of(draw, torch.float32, renormalised=True))
    narrow = [replace(part, down=part.down[:, :8]) for part in plain.experts]
    assert not can_fuse(replace(plain, experts=narrow))
