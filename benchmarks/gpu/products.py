"""Products with packed weights and of experts on this machine's GPU, beside torch's, measured as
`kernels` does. torch multiplies e4m3 on both sides, once the rows of x are rounded; ours multiplies
16 bits. `products.error` is the relative difference from the dequantised weights: it shows in which
order torch reads the scales."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from sluice_kernels.packed import BLOCK as PACKED_INPUTS
from sluice_kernels.packed import Grouping, Kind, PackedMatrix, dequantised
from sluice_kernels.triton import operators
from torch import Tensor

from benchmarks.gpu.kernels import GPU, Call, Figure, copy_rate, measure
from benchmarks.turns import report, scaled

BLOCK: Final = 128
E4M3, LARGEST = torch.float8_e4m3fn, 448.0
ROWS: Final = sorted({1, *map(scaled, (64, 256, 4096))})
DENSE: Final = {"qwen3-8b.gate_up": (24_576, 4096), "llama3-70b.down": (8192, 28_672)}
"""Outputs and inputs."""
EXPERTS: Final = {
    "gpt-oss-20b": (Kind.MXFP4, 32, 4, 5760, 2880),
    "qwen3-30b-a3b": (Kind.PLAIN, 128, 8, 1536, 2048),
    "qwen3-30b-a3b-int4": (Kind.INT4, 128, 8, 1536, 2048),
}
"""Experts, how many of them a token has, and outputs and inputs of gate and up."""


def in_blocks(size: int) -> int:
    return max(1, scaled(size) // BLOCK) * BLOCK


def dense(name: str, rows: int, *, blocks: bool) -> Figure:
    """One product with FP8, scaled by blocks or by outputs."""
    outs, width = map(in_blocks, DENSE[name])
    numbers = torch.randn(outs, width, device=GPU).to(E4M3)
    scales = torch.rand(outs // BLOCK, width // BLOCK if blocks else 1, device=GPU) / 64
    by_output = scales.repeat_interleave(BLOCK, 0)
    matrix = PackedMatrix(Kind.FP8, numbers.view(torch.uint8), by_output)
    x, plain = torch.randn(rows, width, device=GPU).bfloat16(), dequantised(matrix).bfloat16()
    ways: dict[str, Call] = {
        "ours": partial(operators.packed_product, x, matrix),
        "bfloat16": partial(F.linear, x, plain),
    }
    stored = scales if blocks else by_output
    for order in ("rows", "columns"):
        ways[f"scaled_mm by {order}"] = partial(scaled_product, x, numbers, stored, order)
    label = f"fp8-{'blocks' if blocks else 'outputs'}.{name}.{rows}"
    wanted = x.float() @ plain.float().T
    for way, call in ways.items():
        errors(label, way, call, wanted)
    return Figure(label, matrix.numbers.nbytes + by_output.nbytes, ways)


def scaled_product(x: Tensor, numbers: Tensor, scales: Tensor, order: str) -> Tensor:
    """torch's product, after rounding of x by row and block; `order`: how scales lie in memory."""
    from torch.nn.functional import ScalingType

    groups = x.float().unflatten(1, (scales.shape[1], -1))
    steps = groups.abs().amax(-1).clamp_min(1e-12) / LARGEST
    rounded = (groups / steps[..., None]).flatten(1).to(E4M3)
    recipes = ScalingType.RowWise, ScalingType.RowWise
    weights = scales.T
    if scales.shape[1] > 1:
        recipes = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
    if order == "columns":
        steps, weights = steps.T.contiguous().T, weights.T.contiguous().T
    else:
        steps, weights = steps.contiguous(), weights.contiguous()
    return F.scaled_mm(rounded, numbers.T, steps, recipes[0], weights, recipes[1])


def grouped(name: str, tokens: int) -> Figure:
    """Gate and up of the experts that tokens choose."""
    kind, count, top, *sizes = EXPERTS[name]
    experts, (outs, width) = max(top, scaled(count)), map(in_blocks, sizes)
    if kind is Kind.PLAIN:
        matrix = PackedMatrix(kind, torch.randn(experts, outs, width, device=GPU).bfloat16())
    else:
        numbers = torch.randint(0, 256, (experts, outs, width // 2), device=GPU).to(torch.uint8)
        groups = experts, outs, width // (PACKED_INPUTS if kind is Kind.MXFP4 else BLOCK)
        scales = torch.full(groups, 120, dtype=torch.uint8, device=GPU)
        matrix = PackedMatrix(kind, numbers, scales)
        if kind is Kind.INT4:
            matrix = PackedMatrix(kind, numbers, scales.half() / 2**14, scales // 15)
    plain = torch.stack([dequantised(matrix[expert]).bfloat16() for expert in range(experts)])
    x, logits = torch.randn(tokens, width, device=GPU).bfloat16(), torch.randn(tokens, experts)
    best, _ = operators.choose_experts(logits.to(GPU), top, True)
    order, counts = operators.sort_by_expert(best, experts)
    rows = x[order // top].float().split(counts.tolist())
    wanted = torch.cat([own @ plain[at].float().T for at, own in enumerate(rows)])
    by_token, ends = Grouping(counts, reads=order, top=top), counts.cumsum(0, dtype=torch.int32)
    ways: dict[str, Call] = {
        "ours": partial(operators.packed_product, x, matrix, None, by_token),
        "grouped_mm": lambda: F.grouped_mm(x[order // top], plain.transpose(1, 2), offs=ends),
    }
    label = f"experts.{name}.{tokens}"
    for way, call in ways.items():
        errors(label, way, call, wanted)
    chosen = int((counts > 0).sum())
    moved = sum(part.nbytes for part in matrix.parts) * chosen // experts
    return Figure(label, moved, ways)


def errors(label: str, way: str, call: Call, wanted: Tensor) -> None:
    """Reports how far a way's result is from `wanted`."""
    try:
        made = call()
    except Exception:  # `measure` says why
        return
    assert isinstance(made, Tensor)
    error = (made.float() - wanted).norm() / wanted.norm()
    report(f"products.error.{label}", round(float(error), 5), unit="ratio", way=way)


def figures() -> Iterator[Figure]:
    for name, rows, blocks in product(DENSE, ROWS, (True, False)):
        yield dense(name, rows, blocks=blocks)
    for name, rows in product(EXPERTS, ROWS):
        yield grouped(name, rows)


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 1
    rate = copy_rate()
    report("products.copy", rate / 1e9, unit="GB/s", device=torch.cuda.get_device_name(GPU))
    measure(figures(), rate, "products")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
