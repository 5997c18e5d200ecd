"""Kernel launches: a kernel, its grid, its arguments. Pure: neither Triton nor a GPU is needed.

One `Call` can be run by the interpreter in tests, compiled for an architecture, or launched. The
types of its arguments and its constants determine the program that serves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sluice_kernels.reference import DecodeTensors

POINTERS: Final = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
"""Triton's name of a tensor's type."""
_ROTARY_WARPS, _ROTARY_PAIRS = 2, 512
"""A program turns this many pairs: each thread reads 16 bytes of 16-bit numbers at a time."""
_SAMPLE_WARPS, _SAMPLE_TOKENS = 8, 2048
"""A program reads this many logits at a time: each thread eight. With 64 registers a thread four
fit on a multiprocessor, so that 256 rows are sampled at once on 132 of them."""
_LISTING_WARPS, _LISTED_PAGES = 1, 128
"""A program lists this many pages of a row at a time: 2,048 tokens in pages of 16."""

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

    def program(self) -> Program:
        """The program that serves this call."""
        types = tuple((name, _type(value)) for name, value in self.arguments.items())
        constants = tuple(self.constants.items())
        return Program(self.kernel, types, constants, self.multiples, self.warps)


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


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
