"""The Triton program of products with packed weights: see `sluice_kernels.packed`.

Numbers are unpacked into float16, in which each is exact but for a power of two; their scales make
up for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

PLAIN: tl.constexpr = tl.constexpr(0)
FP8: tl.constexpr = tl.constexpr(1)
INT4: tl.constexpr = tl.constexpr(2)
MXFP4: tl.constexpr = tl.constexpr(3)


@triton.jit  # type: ignore[untyped-decorator]
def packed_product(  # type: ignore[no-untyped-def]
    x,
    numbers,
    scales,
    zeros,
    bias,
    counts,
    reads,
    writes,
    out,
    rows,
    width,
    outs,
    group,
    groups,
    experts,
    top,
    KIND: tl.constexpr,  # noqa: N803
    EXPERTS: tl.constexpr,  # noqa: N803
    SHARED: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
):
    """Program for BLOCK_M rows, all of one expert, and BLOCK_N outputs. SHARED: groups in BLOCK_K
    inputs; 0: all of these are in one group, whose scale multiplies the sum."""
    halves: tl.constexpr = 1 if KIND < INT4 else 2
    step: tl.constexpr = BLOCK_K // halves
    first, end, matrix = tl.program_id(0) * BLOCK_M, rows, 0
    if counts is not None:
        first, end, matrix = _rows_of_block(tl.program_id(0), counts, experts, EXPERTS, BLOCK_M)
        if first >= end:
            return
    row = first + tl.arange(0, BLOCK_M)[:, None]
    has_row = row < end
    source = row if reads is None else tl.load(reads + row, mask=has_row, other=0) // top
    target = row if writes is None else tl.load(writes + row, mask=has_row, other=0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    has_column = column < outs
    line = (matrix * outs + column).to(tl.int64)
    unit = tl.arange(0, step)[None, :]
    # Of 4 bits, whole bytes of 32 inputs: that addresses are multiples of 16 is then known.
    length = width if halves == 1 else width // 32 * 16
    place = unit if halves == 1 else unit // 16 * 32 + unit % 16

    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(0, width, BLOCK_K):
        stored = begin // halves + unit
        mask = has_column & (stored < length)
        packed = tl.load(numbers + line * length + stored, mask=mask, other=0)
        product = total
        if KIND != PLAIN:
            at = begin // group + tl.arange(0, SHARED if SHARED else 1)[None, :]
            mask = has_column & (at < groups)
            scale, zero = _scale_and_zero(scales, zeros, line * groups + at, mask, KIND)
            if SHARED:
                scale = _spread(scale, BLOCK_N, SHARED, step)
                zero = _spread(zero, BLOCK_N, SHARED, step)
            else:
                product = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for half in tl.static_range(halves):
            inputs = begin + half * 16 + place
            mask = has_row & (inputs < width)
            tile = tl.load(x + source.to(tl.int64) * width + inputs, mask=mask, other=0.0)
            weight = packed
            if KIND != PLAIN:
                weight = _unpacked(packed, 4 * half, zero, KIND)
                weight = _as(weight.to(tl.float32) * scale if SHARED else weight, tile)
            product = tl.dot(tile, tl.trans(weight), product, input_precision="ieee")
        total = product if KIND == PLAIN or SHARED else total + product * tl.trans(scale)
    if bias is not None:
        total += tl.trans(tl.load(bias + line, mask=has_column, other=0.0).to(tl.float32))
    place_out = out + target.to(tl.int64) * outs + tl.trans(column)
    tl.store(place_out, total, mask=has_row & tl.trans(has_column))


@triton.jit  # type: ignore[untyped-decorator]
def _rows_of_block(block, counts, experts, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Rows [first, end) of which the block computes the first BLOCK_M, and their expert; none for
    blocks after the last. Each expert begins a block; rows are sorted by expert."""
    expert = tl.arange(0, EXPERTS)
    count = tl.load(counts + expert, mask=expert < experts, other=0)
    blocks = (count + BLOCK_M - 1) // BLOCK_M
    matrix = tl.sum((tl.cumsum(blocks, 0) <= block).to(tl.int32), 0)
    before = expert < matrix
    earlier = tl.sum(tl.where(before, count, 0), 0)
    first = earlier + (block - tl.sum(tl.where(before, blocks, 0), 0)) * BLOCK_M
    return first, earlier + tl.sum(tl.where(expert == matrix, count, 0), 0), matrix


@triton.jit  # type: ignore[untyped-decorator]
def _unpacked(packed, shift, zero, KIND: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Numbers in float16: e4m3 divided by 2^8, e2m1 by 2^14, or whole numbers less `zero`."""
    bits = packed.to(tl.int16) >> shift
    if KIND == FP8:
        number = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
    elif KIND == MXFP4:
        number = (((bits & 8) << 12) | ((bits & 7) << 9)).to(tl.float16, bitcast=True)
    else:  # in float16, the bits 0x6400 + n are 1024 + n; `zero` is 1024 more, too
        number = ((bits & 15) | 0x6400).to(tl.float16, bitcast=True) - zero
    return number


@triton.jit  # type: ignore[untyped-decorator]
def _scale_and_zero(scales, zeros, at, mask, KIND: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Scales in float32 and zeros in float16, for numbers as `_unpacked` makes them."""
    stored = tl.load(scales + at, mask=mask, other=0)
    zero = tl.full(at.shape, 0.0, tl.float16)
    if KIND == FP8:
        scale = stored.to(tl.float32) * 256.0
    elif KIND == MXFP4:
        scale = (stored.to(tl.int32) << 23).to(tl.float32, bitcast=True) * 16384.0
    else:
        scale = stored.to(tl.float32)
        zero = tl.load(zeros + at, mask=mask, other=0).to(tl.float16) + 1024.0
    return scale, zero


@triton.jit  # type: ignore[untyped-decorator]
def _spread(of_groups, OUTS: tl.constexpr, SHARED: tl.constexpr, STEP: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """[outs, groups] → [outs, step], a value for each of the groups' numbers."""
    wide = tl.broadcast_to(of_groups[:, :, None], (OUTS, SHARED, STEP // SHARED))
    return tl.reshape(wide, (OUTS, STEP))


@triton.jit
def _as(weight, tile):  # type: ignore[no-untyped-def]
    """The weight in the type of `tile`."""
    if tile.dtype == tl.bfloat16:
        return weight.to(tl.float32).to(tl.bfloat16)
    return weight.to(tile.dtype)
