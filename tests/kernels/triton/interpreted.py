"""Runs the Triton kernels in Triton's interpreter, beside their references, case by case.

`python -m tests.kernels.triton.interpreted` prints one JSON object: what went wrong in each case,
or null. It wants a process of its own, as Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

import torch
from sluice_kernels import reference
from sluice_kernels.packed import Grouping, Kind, PackedMatrix
from sluice_kernels.reference import DecodeTensors
from sluice_kernels.triton import calls
from sluice_runtime.engine.sampling import draw
from torch import Tensor

from tests.kernels.packed_matrices import packed_matrix
from tests.kernels.triton.sampled_rows import (
    KINDS,
    assert_sampled,
    parameters_of_kind,
    rows_of_kind,
    tables_of,
)

LAYERS, PAGES, PAGE = 3, 6, 4
# A number of 16 bits may be rounded to its neighbour: what is compared was computed in 32.
WITHIN: Final = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
HEADS: Final = {64: (5, 1), 80: (4, 4), 96: (9, 3), 128: (14, 2)}
"""Query and key heads by head dimension: all in one program, or in several, the last not full."""
# Tokens go to the first and the last page, to padding, and nowhere.
PAGE_IDS: Final = (0, PAGES - 1, PAGES, 3, -1, 1, 999)

Case = Callable[[], None]


def run(call: calls.Call) -> None:
    from sluice_kernels.triton.cubins import function_of

    count_to_numbers_of_one_element()
    multiply_bfloat16()
    function_of(call.kernel)[call.grid](**call.arguments, **call.constants)


@cache
def count_to_numbers_of_one_element() -> None:
    """The interpreter hands numbers over as arrays of one element, of which numpy since 2.4 makes
    no integer, as `range` needs."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


@cache
def multiply_bfloat16() -> None:
    """The interpreter's numpy has no bfloat16, whose bits it multiplies as whole numbers."""
    from triton import language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    multiply = builder.create_dot

    def patched(self: Any, a: Any, b: Any, *others: Any) -> Any:
        a, b = (
            self.cast_impl(each, tl.float32) if each.dtype.scalar == tl.bfloat16 else each
            for each in (a, b)
        )
        return multiply(self, a, b, *others)

    builder.create_dot = patched


def rotated(dtype: torch.dtype, dim: int, normed: bool, tokens: int, ids: torch.dtype) -> None:
    torch.manual_seed(dim + tokens)
    heads, kv_heads = HEADS[dim]
    qkv = torch.randn(tokens, heads + 2 * kv_heads, dim).mul(3).to(dtype)
    norm = torch.rand(heads + kv_heads, dim).to(dtype) if normed else None
    angles = torch.randn(tokens, dim // 2)
    pool = torch.randn(PAGES + 1, LAYERS, 2, PAGE, kv_heads, dim).to(dtype)
    pages = torch.tensor(PAGE_IDS[:tokens], dtype=ids)
    offsets = torch.arange(tokens, dtype=ids) % PAGE
    wanted_pool, queries = pool.clone(), torch.full((tokens, heads, dim), torch.nan, dtype=dtype)
    before = (qkv, norm, 1e-6, angles.cos(), angles.sin())
    after = (1, pages, offsets)
    wanted = reference.rotate_and_store_padded(*before, wanted_pool, *after)
    run(calls.rotate_and_store(*before, pool, *after, queries))
    within = WITHIN[dtype]
    torch.testing.assert_close(queries, wanted, atol=within, rtol=within)
    torch.testing.assert_close(pool, wanted_pool, atol=within, rtol=within)
    # Values are copied; other layers are not written.
    assert torch.equal(pool[:, :, 1], wanted_pool[:, :, 1])
    assert torch.equal(pool[:, 0], wanted_pool[:, 0])


def sampled(kind: str, dtype: torch.dtype, vocabulary: int, block: int) -> None:
    torch.manual_seed(vocabulary)
    logits = rows_of_kind(kind, vocabulary, 5).to(dtype)
    parameters = parameters_of_kind(kind, vocabulary, len(logits))
    tokens = torch.full((len(logits),), 7)
    call = calls.sample_rows(logits, *tables_of(parameters), tokens)
    run(replace(call, constants={"BLOCK": block}))
    assert_sampled(tokens, logits, parameters)


def hashed() -> None:
    """Seeds and positions of all sizes give the host's numbers, bit for bit."""
    from tests.kernels.triton.uniform_numbers import uniform_numbers

    torch.manual_seed(0)
    edges = [0, 1, -1, 2**63 - 1, -(2**63), 1 << 31]
    seeds = torch.cat((torch.tensor(edges), torch.randint(-(2**63), 2**63 - 1, (60,))))
    positions = torch.randint(0, 2**31 - 1, (len(seeds),), dtype=torch.int32)
    uniforms = torch.zeros(len(seeds), dtype=torch.float64)
    uniform_numbers[len(seeds),](seeds, positions, uniforms)
    wanted = draw.uniform(seeds.numpy(), positions.long().numpy())
    assert uniforms.numpy().tobytes() == wanted.tobytes()
    assert torch.equal(uniforms, reference.uniforms(seeds, positions.long()))


def decoded(contexts: list[int], batch: int, page_size: int, block: int) -> None:
    """Rows anywhere in the table, then padding; what a row has not is poison."""
    torch.manual_seed(batch)
    table_rows, most, padding = 2 * batch, -(-max(contexts) // page_size) + 2, 99
    rows = torch.full((batch,), table_rows, dtype=torch.int32)
    rows[: len(contexts)] = torch.randperm(table_rows)[: len(contexts)].int()
    lengths = torch.ones(batch, dtype=torch.int32)
    lengths[: len(contexts)] = torch.tensor(contexts)
    counts = (lengths + page_size - 1) // page_size
    indptr = torch.cat((torch.zeros(1), counts.cumsum(0))).int()
    table = torch.randint(0, padding, (table_rows, most))
    last_tokens = torch.arange(table_rows + 1) + 1000

    def written() -> Any:
        columns = [torch.full((batch,), -5) for _ in range(4)]
        return [*columns, torch.full((int(indptr[-1]) + 3,), -5, dtype=torch.int32)]

    read, ours, theirs = (rows, lengths, indptr, table, last_tokens), written(), written()
    arguments: tuple[Any, ...] = (*read, *ours, page_size, padding)
    run(replace(calls.decode_inputs(DecodeTensors(*arguments)), constants={"BLOCK": block}))
    wanted: tuple[Any, ...] = (*read, *theirs, page_size, padding)
    reference.decode_inputs(DecodeTensors(*wanted))
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other), (mine, other)
    assert ours[4][-3:].tolist() == [-5] * 3, "only the listed pages are written"


def multiplied(
    matrix: Callable[[], PackedMatrix],
    dtype: torch.dtype,
    rows: int,
    tile: calls.Tile,
    biased: bool,
) -> None:
    torch.manual_seed(rows)
    weight = matrix()
    *_, outs, width = weight.shape
    x, bias = torch.randn(rows, width).to(dtype), torch.randn(outs).to(dtype) if biased else None
    out = torch.full((rows, outs), torch.nan, dtype=dtype)
    run(calls.packed_product(x, weight, bias, out, tile=tile))
    assert_multiplied(out, reference.packed_product(x.float(), weight, bias))


def grouped(kind: Kind, dtype: torch.dtype, counts: list[int], top: int, biased: bool) -> None:
    """Rows are read from their tokens and sorted by expert, then written back to their places."""
    torch.manual_seed(len(counts))
    rows, outs, width = sum(counts), 24, 64
    weight = packed_matrix(kind, len(counts), outs, width, dtype=dtype)
    bias = torch.randn(len(counts), outs).to(dtype) if biased else None
    of_experts, order = torch.tensor(counts, dtype=torch.int32), torch.randperm(rows).int()
    for grouping, read in (
        (Grouping(of_experts), rows),
        (Grouping(of_experts, reads=order, top=top), rows // top),
        (Grouping(of_experts, writes=order), rows),
    ):
        x, out = (
            torch.randn(read, width).to(dtype),
            torch.full((rows, outs), torch.nan, dtype=dtype),
        )
        run(calls.packed_product(x, weight, bias, out, grouping, calls.Tile(16, 16, 64, 4)))
        assert_multiplied(out, reference.packed_product(x.float(), weight, bias, grouping))


def assert_multiplied(out: Tensor, wanted: Tensor) -> None:
    """Errors of rounding add up over the inputs: they are compared with the whole result."""
    assert out.isfinite().all()
    error = (out.float() - wanted).norm() / wanted.norm()
    assert error < WITHIN[out.dtype], error


def chosen(dtype: torch.dtype, experts: int, top: int, renormalised: bool) -> None:
    torch.manual_seed(experts)
    logits = torch.randn(3, experts).mul(4).to(dtype)
    best, shares = torch.full((3, top), -5, dtype=torch.int32), torch.zeros(3, top, dtype=dtype)
    run(calls.choose_experts(logits, best, shares, renormalised))
    wanted_best, wanted = reference.choose_experts(logits, top, renormalised)
    within = WITHIN[dtype]
    torch.testing.assert_close(shares, wanted, atol=within, rtol=within)
    taken = logits.gather(1, best.long())
    assert torch.equal(taken, logits.gather(1, wanted_best.long())), (
        "equal logits may change places"
    )
    assert all(len({*row}) == top for row in best.tolist())


def without_a_number() -> None:
    """A row of NaN chooses experts that there are: what reads by its choice stays in bounds."""
    logits = torch.full((1, 5), torch.nan)
    best, shares = torch.full((1, 2), -5, dtype=torch.int32), torch.zeros(1, 2)
    run(calls.choose_experts(logits, best, shares, True))
    assert all(0 <= expert < 5 for expert in best.flatten().tolist())


def sorted_choices(rows: int, experts: int, block: int) -> None:
    torch.manual_seed(rows)
    choices = torch.randint(0, experts, (rows, 2), dtype=torch.int32)
    choices[choices == 1] = 2  # an expert without rows
    order, counts = torch.full((rows * 2,), -5).int(), torch.full((experts,), -5).int()
    call = calls.sort_by_expert(choices, order, counts)
    run(replace(call, constants={"BLOCK": block}))
    wanted_order, wanted_counts = reference.sort_by_expert(choices, experts)
    assert torch.equal(order, wanted_order)
    assert torch.equal(counts, wanted_counts)


def gated(dtype: torch.dtype, width: int, block: int) -> None:
    torch.manual_seed(width)
    gate_up, out = torch.randn(3, 2 * width).mul(6).to(dtype), torch.zeros(3, width, dtype=dtype)
    call = calls.clamped_swiglu(gate_up, out, 1.7, 7.0)
    call = replace(call, constants={"BLOCK": block}, grid=(3, -(-width // block)))
    run(call)
    wanted = reference.clamped_swiglu(gate_up, 1.7, 7.0)
    torch.testing.assert_close(out, wanted, atol=WITHIN[dtype], rtol=WITHIN[dtype])


def around_experts() -> Iterator[tuple[str, Case]]:
    sizes = zip(WITHIN, ((5, 2), (128, 8), (32, 4)), strict=True)
    for (dtype, (experts, top)), renormalised in itertools.product(sizes, (True, False)):
        name = f"choose_experts-{experts}-{'shares of 1' if renormalised else 'shares'}"
        yield name, partial(chosen, dtype, experts, top, renormalised)
    yield "choose_experts-nan", without_a_number
    for rows, block in ((1, 16), (9, 16), (20, 16), (3, 64)):
        yield f"sort_by_expert-{rows}-{block}", partial(sorted_choices, rows, 5, block)
    for dtype, width in zip(WITHIN, (16, 24, 40), strict=True):
        yield f"clamped_swiglu-{dtype}", partial(gated, dtype, width, 16)


def products() -> Iterator[tuple[str, Case]]:
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    small, wide = calls.Tile(16, 16, 64, 4), calls.Tile(16, 32, 128, 4)
    some = calls.tile_for(40)
    # The last tile of rows, outputs and inputs is not full.
    for name, make, dtype, tile in (
        ("plain", partial(packed_matrix, Kind.PLAIN, 24, 96, dtype=brain), brain, small),
        ("fp8-channels", partial(packed_matrix, Kind.FP8, 24, 96, group=96), brain, small),
        ("fp8-blocks", partial(packed_matrix, Kind.FP8, 40, 256, group=128), half, wide),
        ("fp8-narrow-blocks", partial(packed_matrix, Kind.FP8, 24, 96), single, small),
        ("int4", partial(packed_matrix, Kind.INT4, 40, 192, group=64), half, wide),
        ("int4-narrow", partial(packed_matrix, Kind.INT4, 24, 96), brain, small),
        ("int4-one-group", partial(packed_matrix, Kind.INT4, 24, 96, group=96), single, small),
        ("mxfp4", partial(packed_matrix, Kind.MXFP4, 24, 160), brain, small),
        ("mxfp4-some", partial(packed_matrix, Kind.MXFP4, 72, 160), brain, some),
        ("mxfp4-half", partial(packed_matrix, Kind.MXFP4, 24, 64), half, wide),
    ):
        for rows, biased in ((1, True), (17, False)):
            case = partial(multiplied, make, dtype, rows, tile, biased)
            yield f"packed_product-{name}-{rows}", case
    kinds = (Kind.PLAIN, brain), (Kind.MXFP4, brain), (Kind.INT4, half), (Kind.FP8, brain)
    for kind, dtype in kinds:
        # Experts without rows, with more than a tile of them, at the end and at the beginning.
        for counts, top in (([0, 17, 1, 0, 2], 4), ([3, 0], 1)):
            case = partial(grouped, kind, dtype, counts, top, kind in (Kind.PLAIN, Kind.MXFP4))
            yield f"packed_product-{kind.name}-of-{len(counts)}", case


def cases() -> Iterator[tuple[str, Case]]:
    odd = {64: 1, 80: 3, 96: 2, 128: 7}
    for (dtype, dim), normed in itertools.product(itertools.product(WITHIN, odd), (False, True)):
        ids = torch.int64 if normed else torch.int32
        name = f"rotate_and_store-{dtype}-{dim}-{'normed' if normed else 'plain'}"
        yield name, partial(rotated, dtype, dim, normed, odd[dim], ids)
    # Several blocks of which the last is not full, several full ones, one.
    sizes = zip(WITHIN, ((600, 256), (64, 16), (259, 512)), strict=True)
    for (dtype, size), kind in itertools.product(sizes, KINDS):
        yield f"sample_rows-{dtype}-{kind}", partial(sampled, kind, dtype, *size)
    yield "uniform_at", hashed
    yield from products()
    yield from around_experts()
    for contexts, batch in (([1], 1), ([16, 17, 1, 90], 4), ([5, 64], 8)):
        for block in (2, 128):
            name = f"decode_inputs-{len(contexts)}-of-{batch}-{block}"
            yield name, partial(decoded, contexts, batch, 16, block)


def outcome(case: Case) -> str | None:
    try:
        case()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"
    print(json.dumps({name: outcome(case) for name, case in cases()}))


if __name__ == "__main__":
    main()
