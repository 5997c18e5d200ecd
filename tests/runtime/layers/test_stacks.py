"""All ways to compute the layers agree: operator by operator, and in shards of any number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Self

import pytest
import torch
from sluice_kernels import native
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.layers.backend import NATIVE, NATIVE_INT8, TORCH
from sluice_runtime.layers.dense import linear, pack_int8
from sluice_runtime.layers.packed import as_tensor
from sluice_runtime.layers.rope import Rope, angles_of, inverse_frequencies
from sluice_runtime.layers.stack import LayerShape, LayerStack, LayerWeights, MlpWeights, PagedStep
from sluice_runtime.layers.stacks import Operators, PlainStack, ShardedStack
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from tests.pairwise import matrix
from tests.runtime.layers.layouts import layout

MISSING = native.load()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

LAYERS, HIDDEN, INNER, DIM, HEADS, KV_HEADS = 3, 48, 96, 32, 8, 4
SHAPE = LayerShape(HEADS, KV_HEADS, DIM, 1e-6)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Of the difference's norm, beside the norm of what is wanted."""
Make = Callable[[list[LayerWeights]], LayerStack]


def layers(
    dtype: torch.dtype, *, head_norms: bool = True, inner: int = INNER
) -> list[LayerWeights]:
    def drawn(*shape: int) -> Tensor:
        return (torch.randn(shape) / math.sqrt(shape[-1])).to(dtype)

    def norm(width: int) -> Tensor:
        return (torch.rand(width) + 0.5).to(dtype)

    torch.manual_seed(0)
    return [
        LayerWeights(
            attention_norm=norm(HIDDEN),
            query=drawn(HEADS * DIM, HIDDEN),
            key=drawn(KV_HEADS * DIM, HIDDEN),
            value=drawn(KV_HEADS * DIM, HIDDEN),
            qkv_biases=None,
            head_norms=(norm(DIM), norm(DIM)) if head_norms else None,
            output=drawn(HIDDEN, HEADS * DIM),
            mlp_norm=norm(HIDDEN),
            mlp=MlpWeights(
                gate=drawn(inner, HIDDEN), up=drawn(inner, HIDDEN), down=drawn(HIDDEN, inner)
            ),
        )
        for _ in range(LAYERS)
    ]


@torch.inference_mode()
def computed(stack: LayerStack, dtype: torch.dtype, page_size: int = 16) -> tuple[Tensor, Tensor]:
    """Output and pool of one step over a pool that holds the rows' earlier tokens."""
    torch.manual_seed(1)
    where = layout(page_size)
    pool = PagePool(KvShape(LAYERS, KV_HEADS, DIM, dtype), where.page_table.numel(), page_size)
    pool.data.copy_(torch.randn(pool.data.shape))
    n = int(where.begins[-1])
    angles = angles_of(inverse_frequencies(Rope(10_000.0), DIM), torch.arange(n))
    return stack.forward(
        torch.randn(n, HIDDEN).to(dtype), PagedStep(pool, where, angles)
    ), pool.data


def sharded(shards: int) -> Make:
    return lambda weights: ShardedStack(weights, SHAPE, shards)


STACKS: dict[str, Make] = {
    "native": lambda weights: PlainStack(weights, SHAPE, NATIVE.operators),
    **{f"{shards} shards": sharded(shards) for shards in (1, 2, 4)},
}


@pytest.mark.parametrize(
    ("name", "dtype", "head_norms", "page_size"),
    matrix(STACKS, TOLERANCE, [True, False], [1, 16], others=pytest.mark.full),
    ids=str,
)
def test_stacks_agree(name: str, dtype: torch.dtype, head_norms: bool, page_size: int) -> None:
    weights = layers(dtype, head_norms=head_norms)
    wanted = computed(PlainStack(weights, SHAPE, TORCH.operators), dtype, page_size)
    seen = computed(STACKS[name](weights), dtype, page_size)
    for actual, expected in zip(seen, wanted, strict=True):
        assert (actual - expected).norm() <= TOLERANCE[dtype] * expected.norm()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("operators", [TORCH.operators, NATIVE.operators], ids=["torch", "native"])
def test_parts_have_norms_of_their_outputs(before: bool, operators: Operators) -> None:
    """A norm is undone by the next: what a part adds does not depend on the size of its output."""

    def with_outputs_of(size: float) -> PlainStack:
        return PlainStack(
            [
                replace(
                    layer,
                    attention_norm=layer.attention_norm if before else None,
                    mlp_norm=layer.mlp_norm if before else None,
                    attention_post_norm=layer.mlp_norm,
                    mlp_post_norm=layer.attention_norm,
                    output=as_tensor(layer.output, torch.float32) * size,
                )
                for layer in layers(torch.float32)
            ],
            replace(SHAPE, norm_eps=1e-12),
            operators,
        )

    once, twice = (computed(with_outputs_of(size), torch.float32)[0] for size in (1.0, 2.0))
    torch.testing.assert_close(once, twice, rtol=1e-3, atol=1e-4)
    plain = PlainStack(layers(torch.float32), SHAPE, operators)
    assert (once - computed(plain, torch.float32)[0]).norm() > 0.1 * once.norm()


ROUNDED = 0.03
"""Of a result, by which matrices of 8 bits change it."""


@pytest.mark.parametrize(
    ("dtype", "shards", "inner"),
    matrix(TOLERANCE, [0, 1, 2, 4], [1, 9, INNER], others=pytest.mark.full),
    ids=str,
)
def test_matrices_of_8_bits_compute_about_the_same(
    dtype: torch.dtype, shards: int, inner: int
) -> None:
    weights = layers(dtype, inner=inner)
    wanted = computed(PlainStack(weights, SHAPE, TORCH.operators), dtype)
    stack: LayerStack = PlainStack(weights, SHAPE, NATIVE_INT8.operators)
    if shards:
        stack = ShardedStack(weights, SHAPE, shards, pack_int8)
    for actual, expected in zip(computed(stack, dtype), wanted, strict=True):
        assert 0 < (actual - expected).norm() <= ROUNDED * expected.norm()


@pytest.mark.parametrize("inner", [1, 3, 5, 9])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_matrices_that_the_shards_do_not_divide_evenly_are_sharded_too(
    dtype: torch.dtype, inner: int
) -> None:
    weights = layers(dtype, inner=inner)
    wanted = computed(PlainStack(weights, SHAPE, TORCH.operators), dtype)
    seen = computed(ShardedStack(weights, SHAPE, 4), dtype)
    for actual, expected in zip(seen, wanted, strict=True):
        assert (actual - expected).norm() <= TOLERANCE[dtype] * expected.norm()


def test_a_step_computes_the_same_each_time() -> None:
    stack = ShardedStack(layers(torch.bfloat16), SHAPE, 4)
    first, *others = (computed(stack, torch.bfloat16) for _ in range(20))
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_an_error_of_one_thread_ends_the_step_of_all() -> None:
    weights = layers(torch.float32)
    stack = ShardedStack(weights, SHAPE, 2)
    stack._weights[5] = torch.randn(HIDDEN, 7)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        computed(stack, torch.float32)
    again = ShardedStack(weights, SHAPE, 2)
    assert computed(again, torch.float32)[0].isfinite().all()


@pytest.mark.process  # the profiler takes a second to start
def test_a_profile_tells_attention_and_waiting_apart() -> None:
    stack = ShardedStack(layers(torch.bfloat16), SHAPE, 2)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        computed(stack, torch.bfloat16)
    calls = {event.key: event.count for event in profiled.key_averages()}
    assert calls["sluice::attend"] == LAYERS
    assert calls["sluice::wait"] == 1 + 4 * LAYERS


def test_shards_that_divide_no_heads_are_refused() -> None:
    weights = layers(torch.float32)
    stack = ShardedStack(weights, SHAPE, 2)
    stack._shards = 3
    with pytest.raises(RuntimeError, match="shards: 3 is not allowed; allowed: divisors of 4"):
        computed(stack, torch.float32)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_packed_matrix_adds_its_bias(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    weight, bias, x = (torch.randn(shape).to(dtype) for shape in ((40, 48), (40,), (3, 48)))
    wanted = x.double() @ weight.double().T + bias.double()
    assert (linear(weight, bias)(x) - wanted).norm() <= TOLERANCE[dtype] * wanted.norm()


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("count", "kind"), [(1, ShardedStack), (2, ShardedStack), (3, PlainStack)])
def test_heads_are_sharded_if_the_threads_divide_them(
    count: int, kind: type, threads: Callable[[int], None]
) -> None:
    threads(count)
    assert type(NATIVE.layers(layers(torch.float32), SHAPE)) is kind


@pytest.mark.parametrize("shape", [replace(SHAPE, qkv_bias=True), replace(SHAPE, post_norms=True)])
def test_layers_with_more_are_computed_operator_by_operator(shape: LayerShape) -> None:
    assert type(NATIVE.layers(layers(torch.float32), shape)) is PlainStack


@pytest.mark.parametrize("make", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("head_norms", [True, False])
def test_the_first_layer_of_a_stack_computes_what_it_would_alone(
    make: Make, head_norms: bool
) -> None:
    weights = layers(torch.float32, head_norms=head_norms)
    first, pool = computed(make(weights).part(0, 1), torch.float32)
    wanted, wanted_pool = computed(make(weights[:1]), torch.float32)
    torch.testing.assert_close(first, wanted)
    torch.testing.assert_close(pool, wanted_pool)


class InParts:
    """A stack computed in parts, and each of these in parts."""

    def __init__(self, whole: LayerStack) -> None:
        self._parts = [whole.part(0, 1), *(whole.part(1, LAYERS).part(i, i + 1) for i in (0, 1))]

    def forward(self, x: Tensor, step: PagedStep) -> Tensor:
        for part in self._parts:
            x = part.forward(x, step)
        return x

    def part(self, first: int, end: int) -> Self:
        raise AssertionError("no step computes a part of these")


@pytest.mark.parametrize(
    ("name", "head_norms", "dtype"),
    matrix(STACKS, [True, False], TOLERANCE, others=pytest.mark.full),
    ids=str,
)
def test_parts_one_after_the_other_compute_what_the_whole_does(
    name: str, head_norms: bool, dtype: torch.dtype
) -> None:
    whole = STACKS[name](layers(dtype, head_norms=head_norms))
    seen = computed(InParts(whole), dtype)
    for actual, expected in zip(seen, computed(whole, dtype), strict=True):
        assert (actual - expected).norm() <= TOLERANCE[dtype] * expected.norm()
