"""Calls on tensors without data: what a program is compiled from."""

from __future__ import annotations

from typing import Final

import torch
from sluice_kernels.packed import Grouping, Kind, PackedMatrix
from sluice_kernels.reference import DecodeTensors
from sluice_kernels.triton import calls
from torch import Tensor

TOKENS, HEADS, KV_HEADS, PAGES, LAYERS, PAGE = 4, 8, 2, 6, 3, 16


def rotary_call(
    dtype: torch.dtype,
    dim: int,
    normed: bool,
    device: str = "meta",
    ids: torch.dtype = torch.int64,
    norm: torch.dtype | None = None,
) -> calls.Call:
    """`norm`: type of the norm's weights; None: `dtype`."""

    def like(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.zeros(shape, dtype=of, device=device)

    turned = HEADS + KV_HEADS
    angles = like(TOKENS, dim // 2, of=torch.float32)
    place = like(TOKENS, of=ids)
    return calls.rotate_and_store(
        like(TOKENS, turned + KV_HEADS, dim),
        like(turned, dim, of=norm or dtype) if normed else None,
        1e-6,
        angles,
        angles,
        like(PAGES + 1, LAYERS, 2, PAGE, KV_HEADS, dim),
        LAYERS - 1,
        place,
        place,
        like(TOKENS, HEADS, dim),
    )


def sample_call(
    dtype: torch.dtype = torch.float32, vocabulary: int = 160, device: str = "meta"
) -> calls.Call:
    number = torch.zeros(TOKENS, dtype=torch.int32, device=device)
    reals = torch.zeros(3, 2 * TOKENS, dtype=torch.float64, device=device)
    wholes = torch.zeros(2, 2 * TOKENS, dtype=torch.int64, device=device)
    tokens = torch.zeros(TOKENS, dtype=torch.int64, device=device)
    logits = torch.zeros(TOKENS, vocabulary, dtype=dtype, device=device)
    return calls.sample_rows(logits, number, number, reals, wholes, tokens)


def decode_call(device: str = "meta") -> calls.Call:
    def int32(size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int32, device=device)

    table = torch.zeros(TOKENS, PAGES, dtype=torch.int64, device=device)
    token = torch.zeros(TOKENS, dtype=torch.int64, device=device)
    read = int32(TOKENS), int32(TOKENS), int32(TOKENS + 1), table, table.view(-1)[: TOKENS + 1]
    written = token, token, token, token, int32(99)
    return calls.decode_inputs(DecodeTensors(*read, *written, PAGE, PAGES))


MULTIPLIED: Final = (
    *((Kind.PLAIN, 0, 2880), (Kind.MXFP4, 32, 2880)),
    *((Kind.FP8, 2880, 2880), (Kind.FP8, 128, 1152)),
    *((Kind.INT4, 128, 1152), (Kind.INT4, 32, 2880), (Kind.INT4, 64, 2880)),
)
"""Kind, inputs of a group and all inputs of products that are tested on a GPU: where groups allow
it, the last tile of inputs is not full, as in gpt-oss."""
OUTPUTS: Final = 208
"""A multiple of 16, as programs that are built ahead need, whose last tile is not full."""


def product_call(
    kind: Kind,
    rows: int = TOKENS,
    dtype: torch.dtype = torch.bfloat16,
    *,
    group: int = 128,
    grouped: str = "",
    biased: bool = False,
    scales: torch.dtype = torch.float16,
    device: str = "meta",
    outs: int = 192,
    width: int = 256,
) -> calls.Call:
    """grouped: "reads", "writes" or nothing; rows: those of one expert; scales: type of INT4's."""
    experts = (3,) if grouped else ()

    def like(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.zeros(shape, dtype=of, device=device)

    numbers, byte = like(*experts, outs, width // kind.in_a_byte, of=torch.uint8), torch.uint8
    scale = {Kind.FP8: torch.float32, Kind.INT4: scales, Kind.MXFP4: byte}
    if kind is Kind.PLAIN:
        matrix = PackedMatrix(kind, like(*experts, outs, width))
    else:
        matrix = PackedMatrix(kind, numbers, like(*experts, outs, width // group, of=scale[kind]))
    if kind is Kind.INT4:
        zeros = like(*experts, outs, width // group, of=byte)
        matrix = PackedMatrix(kind, numbers, matrix.scales, zeros)
    total = rows * (experts[0] if experts else 1)
    order = like(total, of=torch.int32)
    grouping = None
    if grouped:
        reads, writes = (order, None) if grouped == "reads" else (None, order)
        grouping = Grouping(like(*experts, of=torch.int32), reads, writes)
    bias = like(*experts, outs) if biased else None
    return calls.packed_product(like(total, width), matrix, bias, like(total, outs), grouping)


def choice_call(dtype: torch.dtype = torch.bfloat16, device: str = "meta") -> calls.Call:
    best = torch.zeros(TOKENS, 4, dtype=torch.int32, device=device)
    logits = torch.zeros(TOKENS, 32, dtype=dtype, device=device)
    return calls.choose_experts(logits, best, best.to(dtype), True)


def sort_call(device: str = "meta") -> calls.Call:
    best = torch.zeros(TOKENS, 4, dtype=torch.int32, device=device)
    return calls.sort_by_expert(best, best.flatten(), best.flatten()[:3])


def gate_call(dtype: torch.dtype = torch.bfloat16, device: str = "meta") -> calls.Call:
    gate_up = torch.zeros(TOKENS, 2 * 96, dtype=dtype, device=device)
    out = torch.zeros(TOKENS, 96, dtype=dtype, device=device)
    return calls.clamped_swiglu(gate_up, out, 1.7, 7.0)
