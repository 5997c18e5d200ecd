"""Kernel launches: a kernel, its grid, its arguments. Pure: neither Triton nor a GPU is needed.

One `Call` can be run by the interpreter in tests, compiled for an architecture, or launched. The
types of its arguments and its constants determine the program that serves it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sluice_kernels.packed import BLOCK, Grouping, Kind, PackedMatrix
from sluice_kernels.reference import DecodeTensors

POINTERS: Final = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
"""Triton's name of a tensor's type."""
_ROTARY_WARPS, _ROTARY_PAIRS = 2, 512
"""A program turns this many pairs: each thread reads 16 bytes of 16-bit numbers at a time."""
_SAMPLE_WARPS, _SAMPLE_TOKENS = 8, 2048
"""A program reads this many logits at a time: each thread eight. With 64 registers a thread four
fit on a multiprocessor, so that 256 rows are sampled at once on 132 of them."""
_LISTING_WARPS, _LISTED_PAGES = 1, 128
"""A program lists this many pages of a row at a time: 2,048 tokens in pages of 16."""
_EXPERT_SLOTS: Final = 256
_CHOICE_WARPS, _TOP_SLOTS = 1, 8
_SORT_WARPS, _SORTED_ROWS = 4, 1024
_GATE_WARPS, _GATED_VALUES = 4, 1024
"""A program gates this many values of a row: each thread eight, 16 bytes."""
MIN_CAPABILITY: Final = 80
"""Compute capability from which GPUs multiply bfloat16, times ten."""


@dataclass(frozen=True)
class Tile:
    """What one program of a product computes, and the warps that do it."""

    rows: int
    outputs: int
    inputs: int
    warps: int


_FEW_ROWS: Final = Tile(16, 64, 128, 4)
"""Reads weights: as many bytes are under way as fit."""
_SOME_ROWS: Final = Tile(32, 64, 128, 4)
"""Reads weights likewise; the second 32 rows find them in the GPU's cache."""
_MANY_ROWS: Final = Tile(64, 128, 64, 8)
"""Multiplies: weights that are unpacked serve 64 rows."""
_TILES: Final = ((16, _FEW_ROWS), (64, _SOME_ROWS))
"""Most rows of each tile; more have the last one."""

Value = int | float
Constant = int | None


@dataclass(frozen=True)
class Program:
    """A kernel with types and constants, which is compiled for each architecture."""

    kernel: str
    types: tuple[tuple[str, str], ...]
    """Triton's type of each argument, in the order in which they are handed over."""
    constants: tuple[tuple[str, Constant], ...]
    multiples: tuple[str, ...]
    """Addresses and integers that are multiples of 16, which the program relies on."""
    warps: int
    min_capability: int = 0
    """Compute capability that it needs, times ten."""


@dataclass(frozen=True)
class Call:
    """One launch. `arguments` and `constants` together are the kernel's parameters, by name."""

    kernel: str
    grid: tuple[int, int]
    """Grid sizes; if one is 0, there is nothing to launch."""
    arguments: Mapping[str, Tensor | Value]
    """Arguments in the order of the kernel's parameters."""
    constants: Mapping[str, Constant]
    """Parameters whose values are compiled into the program."""
    warps: int
    multiples: tuple[str, ...]
    """Addresses and integers that are multiples of 16: programs read and write 16 bytes at once."""
    min_capability: int = 0

    def program(self) -> Program:
        """The program that serves this call."""
        types = tuple((name, _type(value)) for name, value in self.arguments.items())
        constants = tuple(self.constants.items())
        compiled_in = types, constants, self.multiples, self.warps
        return Program(self.kernel, *compiled_in, self.min_capability)


def _type(value: Tensor | Value) -> str:
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def rotate_and_store(
    qkv: Tensor,
    head_norm: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    pool: Tensor,
    layer: int,
    pages: Tensor,
    offsets: Tensor,
    queries: Tensor,
) -> Call:
    """See `reference.rotate_and_store_padded`; `queries` [n, h, d] are written."""
    tokens, all_heads, dim = qkv.shape
    pages_and_padding, layers, _, page_size, kv_heads, _ = pool.shape
    pairs = _power_of_two(dim // 2)
    heads = max(1, _ROTARY_PAIRS // pairs)
    norm = {"head_norm": head_norm} if head_norm is not None else {}
    tensors = {"cos": cos, "sin": sin, "pool": pool, "pages": pages, "offsets": offsets}
    return Call(
        kernel="rotate_and_store",
        grid=(tokens, -(-all_heads // heads)),
        arguments={"qkv": qkv, **norm, **tensors, "queries": queries}
        | {"eps": eps, "layer": layer, "layers": layers, "page_size": page_size}
        | {"heads": all_heads - 2 * kv_heads, "kv_heads": kv_heads}
        | {"padding_page": pages_and_padding - 1},
        constants={"DIM": dim, "PAIRS": pairs, "HEADS": heads}
        | ({} if norm else {"head_norm": None}),
        warps=_ROTARY_WARPS,
        multiples=("qkv", *norm, "cos", "sin", "pool", "queries"),
    )


def decode_inputs(step: DecodeTensors) -> Call:
    """See `reference.decode_inputs`."""
    table_rows, most_pages = step.page_table.shape
    return Call(
        kernel="decode_inputs",
        grid=(len(step.rows), 1),
        arguments=step._asdict() | {"table_rows": table_rows, "most_pages": most_pages},
        constants={"BLOCK": _LISTED_PAGES},
        warps=_LISTING_WARPS,
        multiples=(),
    )


def sample_rows(
    logits: Tensor, rows: Tensor, positions: Tensor, reals: Tensor, wholes: Tensor, tokens: Tensor
) -> Call:
    """See `reference.sample_rows`; `tokens` [m] are written."""
    m, vocabulary = logits.shape
    return Call(
        kernel="sample_rows",
        grid=(m, 1),
        arguments={
            "logits": logits,
            "rows": rows,
            "positions": positions,
            "reals": reals,
            "wholes": wholes,
            "tokens": tokens,
            "vocabulary": vocabulary,
            "table_rows": reals.shape[1],
        },
        constants={"BLOCK": _SAMPLE_TOKENS},
        warps=_SAMPLE_WARPS,
        multiples=() if vocabulary % 16 else ("logits", "vocabulary"),
    )


def packed_product(
    x: Tensor,
    matrix: PackedMatrix,
    bias: Tensor | None,
    out: Tensor,
    grouping: Grouping | None = None,
    tile: Tile | None = None,
) -> Call:
    """See `reference.packed_product`; `out` [rows, out] is written."""
    *_, outs, width = matrix.shape
    rows, experts = len(out), 0 if grouping is None else len(grouping.counts)
    tile = tile or tile_for(rows // max(1, experts))
    blocks = -(-rows // tile.rows)
    if grouping is not None:  # each expert may leave a block that is not full
        blocks = min(rows, rows // tile.rows + min(rows, experts))
    per_tile = inputs_of_tile(matrix, tile)
    tensors = {"scales": matrix.scales, "zeros": matrix.zeros, "bias": bias}
    for name in ("counts", "reads", "writes"):
        tensors[name] = None if grouping is None else getattr(grouping, name)
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    tile_has_groups = matrix.kind is not Kind.PLAIN and matrix.group == BLOCK
    return Call(
        kernel="packed_product",
        grid=(blocks, -(-outs // tile.outputs)),
        arguments={"x": x, "numbers": matrix.numbers, **present, "out": out}
        | {"rows": rows, "width": width, "outs": outs, "group": matrix.group}
        | {"groups": width // matrix.group, "experts": experts}
        | {"top": 1 if grouping is None else grouping.top},
        constants={"KIND": int(matrix.kind), "EXPERTS": _expert_slots(experts)}
        | {"SHARED": per_tile // matrix.group if tile_has_groups else 0}
        | {"BLOCK_M": tile.rows, "BLOCK_N": tile.outputs, "BLOCK_K": per_tile}
        | {name: None for name in tensors if name not in present},
        warps=tile.warps,
        multiples=("x", "numbers", "width", *(() if outs % 16 else ("out", "outs"))),
        min_capability=MIN_CAPABILITY,
    )


def choose_experts(logits: Tensor, chosen: Tensor, shares: Tensor, renormalised: bool) -> Call:
    """See `reference.choose_experts`; `chosen` and `shares` [n, k] are written."""
    (tokens, experts), top = logits.shape, chosen.shape[1]
    return Call(
        kernel="choose_experts",
        grid=(tokens, 1),
        arguments={"logits": logits, "chosen": chosen, "shares": shares}
        | {"experts": experts, "top": top},
        constants={"RENORMALISED": int(renormalised), "EXPERTS": _expert_slots(experts)}
        | {"TOP": max(_TOP_SLOTS, _power_of_two(top))},
        warps=_CHOICE_WARPS,
        multiples=(),
    )


def sort_by_expert(chosen: Tensor, order: Tensor, counts: Tensor) -> Call:
    """See `reference.sort_by_expert`; `order` [m] and `counts` [e] are written."""
    return Call(
        kernel="sort_by_expert",
        grid=(len(counts), 1),
        arguments={"chosen": chosen, "order": order, "counts": counts, "rows": chosen.numel()},
        constants={"BLOCK": _SORTED_ROWS},
        warps=_SORT_WARPS,
        multiples=("chosen",),
    )


def clamped_swiglu(gate_up: Tensor, out: Tensor, alpha: float, limit: float) -> Call:
    """See `reference.clamped_swiglu`; `out` [m, width] is written."""
    rows, width = out.shape
    return Call(
        kernel="clamped_swiglu",
        grid=(rows, -(-width // _GATED_VALUES)),
        arguments={"gate_up": gate_up, "out": out}
        | {"width": width, "alpha": alpha, "limit": limit},
        constants={"BLOCK": _GATED_VALUES},
        warps=_GATE_WARPS,
        multiples=() if width % 16 else ("gate_up", "out", "width"),
    )


def tile_for(rows: int) -> Tile:
    """The tile for products of `rows` rows of each matrix."""
    return next((tile for most, tile in _TILES if rows <= most), _MANY_ROWS)


def inputs_of_tile(matrix: PackedMatrix, tile: Tile) -> int:
    """Inputs that a program reads at a time: whole groups of the smallest size, else a part of one
    group."""
    if matrix.group == BLOCK or matrix.group == matrix.shape[-1]:
        return tile.inputs
    return math.gcd(matrix.group, tile.inputs)


def _expert_slots(experts: int) -> int:
    """Counts that a program reads: equal for most models, so that these share the program."""
    return max(_EXPERT_SLOTS, _power_of_two(experts)) if experts else 1


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
