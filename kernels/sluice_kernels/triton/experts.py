"""The Triton programs around the products of experts: their choice, their order, their gate."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def choose_experts(  # type: ignore[no-untyped-def]
    logits,
    chosen,
    shares,
    experts,
    top,
    RENORMALISED: tl.constexpr,  # noqa: N803
    EXPERTS: tl.constexpr,  # noqa: N803
    TOP: tl.constexpr,  # noqa: N803
):
    """Program for one token. EXPERTS, TOP: powers of two from `experts` and `top` on."""
    token = tl.program_id(0).to(tl.int64)
    expert, slot = tl.arange(0, EXPERTS), tl.arange(0, TOP)
    present = expert < experts
    own = tl.load(logits + token * experts + expert, mask=present, other=float("-inf"))
    own = own.to(tl.float32)
    weights = tl.exp(own - tl.max(own, 0))
    left = tl.where(present, weights, -1.0)
    best, which = tl.full([TOP], 0.0, tl.float32), tl.full([TOP], 0, tl.int32)
    for place in range(top):
        largest = tl.max(left, 0)
        first = tl.min(tl.where(left == largest, expert, EXPERTS), 0)
        first = tl.minimum(first, experts - 1)  # where a logit is NaN, none is the largest
        best = tl.where(slot == place, largest, best)
        which = tl.where(slot == place, first, which)
        left = tl.where(expert == first, -1.0, left)
    total = tl.sum(best, 0) if RENORMALISED else tl.sum(weights, 0)
    tl.store(chosen + token * top + slot, which, mask=slot < top)
    tl.store(shares + token * top + slot, best / total, mask=slot < top)


@triton.jit  # type: ignore[untyped-decorator]
def sort_by_expert(chosen, order, counts, rows, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Program for one expert, which reads all choices twice, BLOCK at a time."""
    expert = tl.program_id(0)
    earlier, mine = tl.full([BLOCK], 0, tl.int32), tl.full([BLOCK], 0, tl.int32)
    for begin in range(0, rows, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        choice = tl.load(chosen + row, mask=row < rows, other=1 << 30)
        earlier += (choice < expert).to(tl.int32)
        mine += (choice == expert).to(tl.int32)
    first = tl.sum(earlier, 0)
    tl.store(counts + expert, tl.sum(mine, 0))
    for begin in range(0, rows, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        own = tl.load(chosen + row, mask=row < rows, other=1 << 30) == expert
        place = first + tl.cumsum(own.to(tl.int32), 0) - 1
        tl.store(order + place, row, mask=own)
        first += tl.sum(own.to(tl.int32), 0)


@triton.jit  # type: ignore[untyped-decorator]
def clamped_swiglu(gate_up, out, width, alpha, limit, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Program for one row and BLOCK of its values."""
    row = tl.program_id(0).to(tl.int64)
    value = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = gate_up + row * 2 * width + value
    gate = tl.minimum(tl.load(own, mask=value < width, other=0.0).to(tl.float32), limit)
    up = tl.load(own + width, mask=value < width, other=0.0).to(tl.float32)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    product = gate / (1.0 + tl.exp(-alpha * gate)) * (up + 1.0)
    tl.store(out + row * width + value, product, mask=value < width)
