"""The programs. The only module here that needs Triton when it is imported.

Arguments in capitals and `None` are compiled in. All addresses are computed in 64 bits: a pool is
larger than 2^31 elements.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def rotate_and_store(  # type: ignore[no-untyped-def]
    qkv,
    head_norm,
    cos,
    sin,
    pool,
    pages,
    offsets,
    queries,
    eps,
    layer,
    layers,
    page_size,
    heads,
    kv_heads,
    padding_page,
    DIM: tl.constexpr,  # noqa: N803
    PAIRS: tl.constexpr,  # noqa: N803
    HEADS: tl.constexpr,  # noqa: N803
):
    """One token and HEADS of its heads; PAIRS is the power of two that holds half of DIM."""
    half: tl.constexpr = DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, PAIRS)[None, :]
    in_dim = pair < half
    present = (head < heads + 2 * kv_heads) & in_dim
    turning = present & (head < heads + kv_heads)

    source = qkv + (token * (heads + 2 * kv_heads) + head) * DIM + pair
    first = tl.load(source, mask=present, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=present, other=0.0).to(tl.float32)
    left, right = first, second
    if head_norm is not None:
        squares = tl.sum(first * first + second * second, axis=1, keep_dims=True)
        scale = tl.rsqrt(squares / DIM + eps)
        weight = head_norm + head * DIM + pair
        left = first * scale * tl.load(weight, mask=turning, other=0.0).to(tl.float32)
        right = second * scale * tl.load(weight + half, mask=turning, other=0.0).to(tl.float32)
    c = tl.load(cos + token * half + pair, mask=in_dim, other=0.0)
    s = tl.load(sin + token * half + pair, mask=in_dim, other=0.0)
    first = tl.where(turning, left * c - right * s, first)
    second = tl.where(turning, right * c + left * s, second)

    target = queries + (token * heads + head) * DIM + pair
    tl.store(target, first, mask=present & (head < heads))
    tl.store(target + half, second, mask=present & (head < heads))
    page = tl.load(pages + token).to(tl.int64)
    is_value = (head >= heads + kv_heads).to(tl.int32)
    slab = (page * layers + layer) * 2 + is_value
    slot = slab * page_size + tl.load(offsets + token)
    place = pool + (slot * kv_heads + (head - heads - is_value * kv_heads)) * DIM + pair
    stored = present & (head >= heads) & (page >= 0) & (page < padding_page)
    tl.store(place, first, mask=stored)
    tl.store(place + half, second, mask=stored)


@triton.jit  # type: ignore[untyped-decorator]
def copy_pages(  # type: ignore[no-untyped-def]
    source,
    target,
    page_ids,
    pages,
    words,
    PACK: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """BLOCK of the words of one page: from the pool to staging (PACK), or back."""
    entry = tl.program_id(0).to(tl.int64)
    page = tl.load(page_ids + entry).to(tl.int64)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    copied = (word < words) & (page >= 0) & (page < pages)
    read, written = (page, entry) if PACK else (entry, page)
    values = tl.load(source + read * words + word, mask=copied)
    tl.store(target + written * words + word, values, mask=copied)
