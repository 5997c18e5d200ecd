"""Benchmarks each kernel and its reference in plain torch, one JSON line a figure.

`python -m sluice_kernels.bench`: CPU time of one thread, the best of several calls, on every
instruction set that this processor has. Sizes are those of a small Qwen3 with 64 rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from sluice_kernels import native, reference

HIDDEN, INNER, VOCABULARY = 512, 1536, 16_384
HEADS, KV_HEADS, DIM, PAGE = 8, 4, 64, 16
ROWS = 64

Call = Callable[[], object]


@dataclass(frozen=True)
class Figure:
    """A kernel at one size, and what computes the same in torch."""

    name: str
    native: Call
    reference: Call


def figures(dtype: torch.dtype) -> Iterator[Figure]:
    torch.manual_seed(0)
    x, delta = torch.randn(2, ROWS, HIDDEN).to(dtype)
    weight, gate_up = torch.rand(HIDDEN).to(dtype), torch.randn(ROWS, 2 * INNER).to(dtype)
    logits = torch.randn(ROWS, VOCABULARY) * 3
    temperatures, uniforms = torch.full((ROWS,), 0.6), torch.rand(ROWS, dtype=torch.float64)
    yield pair("add_rms_norm", x, delta, weight, 1e-6)
    yield pair("silu_and_multiply", gate_up)
    yield pair("draw", logits, temperatures, uniforms, 1e-5)
    yield pair("draw", logits, torch.zeros(ROWS), uniforms, 1e-5, label="draw.greedy")
    for name, tokens, context, rows in (
        ("decode", 1, 250, ROWS),
        ("decode.long", 1, 4000, 8),
        ("extend", 150, 150, 13),
        ("extend.long", 512, 2048, 1),
    ):
        arguments = attention(tokens, context, rows, dtype)
        yield pair("paged_attention", *arguments, label=f"paged_attention.{name}")
    yield pair("rotate_and_store", *rotation(dtype))
    values = torch.randint(-127, 128, (2 * INNER, HIDDEN), dtype=torch.int8)
    scales = torch.rand(2 * INNER)
    matrix = native.pack_int8(values, scales)
    for rows in (1, ROWS):
        own = x[:rows]
        yield Figure(
            f"int8_product.{rows}_rows",
            partial(native.int8_product, own, matrix),
            partial(reference.int8_product, own, values, scales),
        )


def pair(name: str, *arguments: object, label: str = "") -> Figure:
    ours, theirs = getattr(native, name), getattr(reference, name)
    return Figure(label or name, lambda: ours(*arguments), lambda: theirs(*arguments))


def attention(tokens: int, context: int, rows: int, dtype: torch.dtype) -> tuple[object, ...]:
    pages = -(-context // PAGE)
    pool = torch.randn(rows * pages, 1, 2, PAGE, KV_HEADS, DIM).to(dtype)
    table = torch.randperm(rows * pages).view(rows, pages)
    queries = torch.randn(rows * tokens, HEADS, DIM).to(dtype)
    begins = torch.arange(rows + 1) * tokens
    contexts = torch.full((rows,), context)
    return queries, pool, 0, table, torch.arange(rows), begins, contexts, DIM**-0.5


def rotation(dtype: torch.dtype) -> tuple[object, ...]:
    qkv = torch.randn(ROWS, HEADS + 2 * KV_HEADS, DIM).to(dtype)
    norm = torch.rand(HEADS + KV_HEADS, DIM).to(dtype)
    angles = torch.randn(ROWS, DIM // 2)
    pool = torch.zeros(ROWS, 1, 2, PAGE, KV_HEADS, DIM, dtype=dtype)
    places = torch.arange(ROWS), torch.arange(ROWS) % PAGE
    return qkv, norm, 1e-6, angles.cos(), angles.sin(), pool, 0, *places


def microseconds(call: Call, times: int) -> float:
    best = float("inf")
    for _ in range(times + 1):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return 1e6 * best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    times = parser.parse_args().times
    if (missing := native.load()) is not None:
        print(missing.message)
        return 1
    torch.set_num_threads(1)
    for dtype in native.DTYPES:
        for figure in figures(dtype):
            slow = microseconds(figure.reference, max(1, times // 5))
            for isa in native.isas():
                native.use_isa(isa)
                fast = microseconds(figure.native, times)
                line = {
                    "figure": f"kernels.{figure.name}.{str(dtype).removeprefix('torch.')}.{isa}",
                    "value": round(fast, 1),
                    "unit": "microseconds of one core",
                    "faster_than_torch": round(slow / fast, 1),
                }
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
