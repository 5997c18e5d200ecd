"""Our Triton kernels on a GPU compute what their references say, for odd shapes and types."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from sluice_kernels import reference
from sluice_kernels.packed import Grouping, Kind, PackedMatrix
from sluice_kernels.reference import DecodeTensors
from sluice_kernels.triton import operators

from benchmarks.turns import scaled
from tests.kernels.packed_matrices import packed_matrix
from tests.kernels.triton.sampled_rows import (
    KINDS,
    assert_sampled,
    parameters_of_kind,
    rows_of_kind,
    tables_of,
)
from tests.kernels.triton.shapes import MULTIPLIED, OUTPUTS

pytestmark = pytest.mark.gpu

PAGES, LAYERS, PAGE = 7, 3, 16
TYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "dim", "heads", "normed", "tokens"),
    [
        (dtype, dim, heads, normed, tokens)
        for (dtype, dim), (heads, normed), tokens in product(
            product(TYPES, (64, 80, 128)), (((8, 2), True), ((5, 1), False)), (1, 37)
        )
    ],
)
def test_rotation_with_the_kv_write(
    dtype: torch.dtype, dim: int, heads: tuple[int, int], normed: bool, tokens: int
) -> None:
    torch.manual_seed(tokens)
    query, kv = heads
    qkv = torch.randn(tokens, query + 2 * kv, dim, device="cuda").to(dtype)
    norm = torch.rand(query + kv, dim, device="cuda").to(dtype) if normed else None
    angles = torch.rand(tokens, dim // 2, device="cuda") * 6
    pool = torch.zeros(PAGES + 1, LAYERS, 2, PAGE, kv, dim, device="cuda", dtype=dtype)
    slots = torch.randperm(PAGES * PAGE, device="cuda")[:tokens]
    pages, offsets = slots // PAGE, slots % PAGE
    pages[0] = PAGES  # padding: not stored
    ours, theirs = pool.clone(), pool.clone()
    last = (1e-6, angles.cos(), angles.sin())
    found = operators.rotate_and_store(qkv, norm, *last, ours, 1, pages, offsets)
    wanted = reference.rotate_and_store_padded(qkv, norm, *last, theirs, 1, pages, offsets)
    allowed = 2e-2 if dtype != torch.float32 else 1e-5
    torch.testing.assert_close(found, wanted, rtol=allowed, atol=allowed)
    torch.testing.assert_close(ours, theirs, rtol=allowed, atol=allowed)


@pytest.mark.parametrize("vocabulary", [259, scaled(32_000), scaled(151_936)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_sampling_of_rows(dtype: torch.dtype, kind: str, vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    logits = rows_of_kind(kind, vocabulary, 40).to(dtype).cuda()
    parameters = parameters_of_kind(kind, vocabulary, len(logits)).cuda()
    tokens = operators.sample_rows(logits, *tables_of(parameters))
    assert_sampled(tokens, logits, parameters)


@pytest.mark.parametrize("rows", [1, 40, 256])
def test_inputs_of_decode_steps(rows: int) -> None:
    torch.manual_seed(rows)
    batch, table_rows = rows + 8, 2 * rows
    contexts = torch.ones(batch, dtype=torch.int32)
    contexts[:rows] = torch.randint(1, 5_000, (rows,))
    numbers = torch.full((batch,), table_rows, dtype=torch.int32)
    numbers[:rows] = torch.randperm(table_rows)[:rows]
    indptr = torch.cat((torch.zeros(1), ((contexts + PAGE - 1) // PAGE).cumsum(0))).int()
    table = torch.randint(0, 1 << 20, (table_rows, 5_000 // PAGE + 1))
    read = [
        each.cuda() for each in (numbers, contexts, indptr, table, torch.arange(table_rows + 1))
    ]

    def written() -> Any:
        columns = [torch.zeros(batch, dtype=torch.int64, device="cuda") for _ in range(4)]
        return [*columns, torch.zeros(int(indptr[-1]), dtype=torch.int32, device="cuda")]

    ours, theirs = written(), written()
    for kernel, tensors in ((operators, ours), (reference, theirs)):
        arguments: tuple[Any, ...] = (*read, *tensors, PAGE, 1 << 20)
        kernel.decode_inputs(DecodeTensors(*arguments))
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("rows", [1, 16, 40, 300])
@pytest.mark.parametrize("dtype", TYPES[:2])
@pytest.mark.parametrize(("kind", "group", "width"), MULTIPLIED)
def test_products_with_packed_weights(
    kind: Kind, group: int, width: int, dtype: torch.dtype, rows: int
) -> None:
    torch.manual_seed(rows)
    matrix = on_gpu(packed_matrix(kind, OUTPUTS, width, group=group, dtype=dtype))
    x, bias = (
        torch.randn(rows, width).to("cuda", dtype),
        torch.randn(OUTPUTS).to("cuda", dtype),
    )
    assert_near(
        operators.packed_product(x, matrix, bias), reference.packed_product(x, matrix, bias)
    )


@pytest.mark.parametrize("tokens", [1, 100, 300])
@pytest.mark.parametrize(("kind", "group", "width"), MULTIPLIED)
def test_products_by_expert(kind: Kind, group: int, width: int, tokens: int) -> None:
    """Experts of whom some have no token, gate and up, and down into the tokens' places. Only
    those of gpt-oss have biases."""
    torch.manual_seed(tokens)
    experts, top, dtype = 8, 4, torch.bfloat16
    logits = torch.randn(tokens, experts).to("cuda", dtype)
    logits[:, 3] = -9
    best, shares = operators.choose_experts(logits, top, True)
    wanted_best, wanted_shares = reference.choose_experts(logits, top, True)
    assert torch.equal(logits.gather(1, best.long()), logits.gather(1, wanted_best.long()))
    assert_near(shares, wanted_shares)
    order, counts = operators.sort_by_expert(best, experts)
    for found, wanted in zip((order, counts), reference.sort_by_expert(best, experts), strict=True):
        assert torch.equal(found, wanted)
    matrix = packed_matrix(kind, experts, OUTPUTS, width, group=group, dtype=dtype)
    x = torch.randn(tokens, width).to("cuda", dtype)
    rows = torch.randn(tokens * top, width).to("cuda", dtype)
    bias = torch.randn(experts, OUTPUTS).to("cuda", dtype) if kind is Kind.MXFP4 else None
    for source, grouping in (
        (x, Grouping(counts, reads=order, top=top)),
        (rows, Grouping(counts, writes=order)),
    ):
        call = source, on_gpu(matrix), bias, grouping
        assert_near(operators.packed_product(*call), reference.packed_product(*call))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_clamped_gate(dtype: torch.dtype) -> None:
    gate_up = (torch.randn(37, 2 * 2880) * 6).to("cuda", dtype)
    call = gate_up, 1.702, 7.0
    assert_near(operators.clamped_swiglu(*call), reference.clamped_swiglu(*call))


def on_gpu(matrix: PackedMatrix) -> PackedMatrix:
    return PackedMatrix(matrix.kind, *(part.cuda() for part in matrix.parts))


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """The largest difference is that of neighbouring numbers of the type, over the whole result."""
    error = (found.float() - wanted.float()).norm() / wanted.float().norm()
    assert error < (1e-2 if found.dtype != torch.float32 else 1e-5), error
