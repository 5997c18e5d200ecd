"""Typed functions for the compiled kernels, which are torch operators.

The library next to this file holds one variant for each instruction set. The best one for this
processor is used unless `use_isa` selects another. Shapes as in `reference`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import torch
from torch import Tensor

from sluice_kernels.sources import is_stale

LIBRARY: Final = Path(__file__).with_name("_native.so")
SOURCES: Final = Path(__file__).with_name("csrc")
DTYPES: Final = (torch.float32, torch.bfloat16)
"""Number types that the kernels compute."""


_PANEL: Final = 64
_DEPTH: Final = 64
"""Outputs in one panel of an 8-bit matrix, and the multiple to which its inputs are padded."""


@dataclass(frozen=True)
class Int8Matrix:
    """A matrix [out, in] of 8 bits in the kernels' order; see `pack_int8`."""

    packed: Tensor
    """[panels of 64 outputs, in / 4, 64, 4], padded with zeros."""
    scales: Tensor
    """[out], padded to whole panels, float32."""
    width: int
    """out."""


Matrix = Tensor | Int8Matrix


@dataclass(frozen=True)
class Missing:
    """Why there are no native kernels."""

    message: str


def load(library: Path = LIBRARY) -> Missing | None:
    """Registers the operators; call it before any other function here. It may be called again."""
    if not library.exists():
        return Missing(f"{library.name} was not built")
    if is_stale(library, SOURCES):
        return Missing(f"{library.name} was built from other sources (make setup builds it anew)")
    try:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    except OSError as error:
        return Missing(f"{library.name} cannot be loaded: {error}")
    return None


def isa() -> str:
    """Instruction set in use."""
    return cast(str, torch.ops.sluice.isa())


def isas() -> list[str]:
    """Instruction sets that this processor has, the widest last."""
    return cast(list[str], torch.ops.sluice.isas())


def use_isa(name: str) -> None:
    """Selects an instruction set in all threads from now on: tests and benches compare them."""
    torch.ops.sluice.use_isa(name)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `reference.rms_norm`."""
    return cast(Tensor, torch.ops.sluice.rms_norm.default(x, weight, eps))


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `reference.add_rms_norm`."""
    return cast(Tensor, torch.ops.sluice.add_rms_norm.default(x, delta, weight, eps))


def silu_and_multiply(gate_up: Tensor) -> Tensor:
    """See `reference.silu_and_multiply`."""
    return cast(Tensor, torch.ops.sluice.silu_and_multiply.default(gate_up))


def pack_int8(values: Tensor, scales: Tensor) -> Int8Matrix:
    """values [out, in], int8; scales [out], by which the outputs are multiplied."""
    out, width = values.shape
    panels, depth = -(-out // _PANEL), -(-width // _DEPTH) * _DEPTH
    padded = values.new_zeros(panels * _PANEL, depth)
    padded[:out, :width] = values
    order = padded.view(panels, _PANEL, depth // 4, 4).transpose(1, 2).contiguous()
    padded_scales = torch.ones(panels * _PANEL)
    padded_scales[:out] = scales
    return Int8Matrix(order, padded_scales, out)


def int8_product(x: Tensor, matrix: Int8Matrix) -> Tensor:
    """See `reference.int8_product`; with tiles x is computed as numbers of 16 bits."""
    operator = torch.ops.sluice.int8_product.default
    return cast(Tensor, operator(x, matrix.packed, matrix.scales, matrix.width))


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
) -> Tensor:
    """See `reference.rotate_and_store`."""
    operator = torch.ops.sluice.rotate_and_store.default
    return cast(Tensor, operator(qkv, head_norm, eps, cos, sin, pool, layer, pages, offsets))


def paged_attention(
    queries: Tensor,
    pool: Tensor,
    layer: int,
    page_table: Tensor,
    rows: Tensor,
    begins: Tensor,
    contexts: Tensor,
    scale: float,
) -> Tensor:
    """See `reference.paged_attention`."""
    operator = torch.ops.sluice.paged_attention.default
    return cast(Tensor, operator(queries, pool, layer, page_table, rows, begins, contexts, scale))


def sharded_layers(
    x: Tensor,
    norms: list[Tensor],
    head_norms: list[Tensor],
    weights: list[Matrix],
    shards: int,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    pool: Tensor,
    first_layer: int,
    pages: Tensor,
    offsets: Tensor,
    page_table: Tensor,
    rows: Tensor,
    begins: Tensor,
    contexts: Tensor,
    scale: float,
) -> None:
    """Computes consecutive layers of a decoder: x [n, hidden] becomes the output of the last one.

    norms: [hidden] each, before attention and before the feed-forward part of every layer;
    head_norms: [heads + key heads of a shard, d] of every layer, or none at all; weights: qkv,
    output, gate and up, down of every shard of every layer, [out, in], packed by oneDNN or not, or
    all of 8 bits;
    first_layer: index in the pool of the first layer's keys and values. Each of `shards` threads
    computes one shard; `shards` divides the key heads. Other arguments are those of
    `rotate_and_store` and `paged_attention`.
    """
    packed = [matrix for matrix in weights if isinstance(matrix, Int8Matrix)]
    matrices = [m.packed if isinstance(m, Int8Matrix) else m for m in weights]
    widths = [m.width if isinstance(m, Int8Matrix) else m.shape[0] for m in weights]
    scales = [matrix.scales for matrix in packed]
    torch.ops.sluice.sharded_layers.default(
        x, norms, head_norms, matrices, scales, widths, shards, eps, cos, sin, pool, first_layer,
        pages, offsets, page_table, rows, begins, contexts, scale,
    )  # fmt: skip


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor, greedy_below: float) -> Tensor:
    """See `reference.draw`."""
    drawn = torch.ops.sluice.draw.default(logits, temperatures, uniforms, greedy_below)
    return cast(Tensor, drawn)


def to_float(x: Tensor) -> Tensor:
    """The tensor as float32; only bfloat16 is converted."""
    if x.dtype != torch.bfloat16:
        return x.float()
    return cast(Tensor, torch.ops.sluice.to_float.default(x))
