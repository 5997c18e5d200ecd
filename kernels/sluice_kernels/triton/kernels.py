"""The Triton programs. Only this module of the package imports Triton at once.

Arguments in capitals, and arguments that are `None`, are compiled in. All addresses are computed in
64 bits, because a pool may have more than 2^31 elements.
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
    """Program for one token and HEADS of its heads. PAIRS: the smallest power of two from DIM / 2
    on."""
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
def decode_inputs(  # type: ignore[no-untyped-def]
    rows,
    contexts,
    indptr,
    page_table,
    last_tokens,
    token_ids,
    positions,
    pages,
    offsets,
    indices,
    page_size,
    padding_page,
    table_rows,
    most_pages,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Program for one row, whose pages it lists BLOCK at a time."""
    at = tl.program_id(0)
    row = tl.load(rows + at).to(tl.int64)
    present = row < table_rows
    own = page_table + row * most_pages
    position = tl.load(contexts + at) - 1
    page = tl.load(own + position // page_size, mask=present, other=padding_page)
    tl.store(token_ids + at, tl.load(last_tokens + row))
    tl.store(positions + at, position.to(tl.int64))
    tl.store(pages + at, page.to(tl.int64))
    tl.store(offsets + at, (position % page_size).to(tl.int64))
    first = tl.load(indptr + at)
    count = tl.load(indptr + at + 1) - first
    for begin in range(0, count, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        listed = tl.load(own + place, mask=present & (place < count), other=padding_page)
        tl.store(indices + first + place, listed.to(tl.int32), mask=place < count)


@triton.jit  # type: ignore[untyped-decorator]
def sample_rows(  # type: ignore[no-untyped-def]
    logits,
    rows,
    positions,
    reals,
    wholes,
    tokens,
    vocabulary,
    table_rows,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Program for one row; every pass over it reads BLOCK logits at a time."""
    at = tl.program_id(0)
    own = logits + at.to(tl.int64) * vocabulary
    row = tl.load(rows + at)
    real, whole = reals + row, wholes + row
    temperature = tl.load(real).to(tl.float32)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    least = tl.full([BLOCK], float("inf"), tl.float32)
    where = tl.full([BLOCK], 0, tl.int32)
    for begin in range(0, vocabulary, BLOCK):
        x, token = _block(own, begin, vocabulary, BLOCK)
        larger = (x > best) | (x != x)  # a NaN stays
        where = tl.where(larger, token, where)
        best = tl.where(larger, x, best)
        least = tl.where((x < least) & (x > float("-inf")), x, least)
    peak = tl.max(best, 0)
    chosen = tl.min(tl.where(best == peak, where, vocabulary), 0)
    strange = tl.max((best != best).to(tl.int32), 0)
    distributed = (strange == 0) & (tl.abs(peak) < float("inf"))
    if distributed & (temperature > 0):
        scale = 1.4426950408889634 / temperature  # for powers of two instead of e
        lowest = tl.min(least, 0)
        top_p = tl.load(real + table_rows)
        min_p = tl.load(real + 2 * table_rows).to(tl.float32)
        top_k = tl.load(whole).to(tl.int32)
        if (top_k > 0) & (top_k < vocabulary):
            wanted = top_k.to(tl.float64)
            lowest = _least_kept(own, vocabulary, lowest, peak, None, wanted, BLOCK)
        if top_p < 1:
            mass = _held(own, vocabulary, lowest, peak, scale, BLOCK)
            if top_k > 0:
                # Among tokens equal to the last of the top_k, only as many count as top_k allows.
                beyond = tl.maximum(_held(own, vocabulary, lowest, peak, None, BLOCK) - top_k, 0)
                mass -= beyond * _weights(lowest, peak, scale)
            lowest = _least_kept(own, vocabulary, lowest, peak, scale, top_p * mass, BLOCK)
        if min_p > 0:
            lowest = tl.maximum(lowest, peak + temperature * tl.log(min_p))
        uniform = uniform_at(tl.load(whole + table_rows), tl.load(positions + at))
        chosen = _drawn(own, vocabulary, lowest, peak, scale, uniform, BLOCK)
    tl.store(tokens + at, tl.where(distributed, chosen, -1).to(tl.int64))


@triton.jit
def uniform_at(seed, position):  # type: ignore[no-untyped-def]
    """A number in [0, 1) from 53 bits of a hash of (seed, position), in float64."""
    golden: tl.constexpr = 0x9E3779B97F4A7C15
    word = position.to(tl.int64).to(tl.uint64, bitcast=True) + golden
    mixed = _mix(_mix(seed.to(tl.uint64, bitcast=True)) ^ _mix(word))
    return (mixed >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2^-53


@triton.jit
def _mix(value):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser, in wrapping 64-bit arithmetic."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit  # type: ignore[untyped-decorator]
def _block(own, begin, vocabulary, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Logits of BLOCK tokens from `begin` on, -inf after the vocabulary's end, and the tokens'
    ids."""
    token = begin + tl.arange(0, BLOCK)
    x = tl.load(own + token, mask=token < vocabulary, other=float("-inf"))
    return x.to(tl.float32), token


@triton.jit
def _weights(x, peak, scale):  # type: ignore[no-untyped-def]
    """Weights of logits x, relative to the most probable token's; with scale None each token weighs
    1."""
    return tl.full(x.shape, 1.0, tl.float32) if scale is None else tl.exp2((x - peak) * scale)


@triton.jit  # type: ignore[untyped-decorator]
def _held(own, vocabulary, lowest, peak, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Sum of the weights of all logits that are at least `lowest`."""
    held = tl.full([BLOCK], 0, tl.float32)
    for begin in range(0, vocabulary, BLOCK):
        held += _kept(own, begin, vocabulary, lowest, peak, scale, BLOCK)
    return tl.sum(held.to(tl.float64), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _least_kept(  # type: ignore[no-untyped-def]
    own,
    vocabulary,
    low,
    peak,
    scale,
    wanted,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """The largest logit of the row such that it and all larger ones weigh at least `wanted`; `low`
    if there is none.

    The search keeps it between `low` and `high`. Each pass halves that interval and moves its end
    to the nearest logit of the row, so that a 16-bit model takes about eight passes.
    """
    high = peak
    while low < high:
        middle = tl.minimum(0.5 * low + 0.5 * high, high)
        middle = tl.where(middle > low, middle, high)
        held = tl.full([BLOCK], 0, tl.float32)
        above = tl.full([BLOCK], float("inf"), tl.float32)
        under = tl.full([BLOCK], float("-inf"), tl.float32)
        for begin in range(0, vocabulary, BLOCK):
            x, _ = _block(own, begin, vocabulary, BLOCK)
            held += tl.where(x >= middle, _weights(x, peak, scale), 0.0)
            above = tl.where((x >= middle) & (x < above), x, above)
            under = tl.where((x < middle) & (x > under), x, under)
        enough = tl.sum(held.to(tl.float64), 0) >= wanted
        low = tl.where(enough, tl.min(above, 0), low)
        high = tl.where(enough, high, tl.max(under, 0))
    return low


@triton.jit  # type: ignore[untyped-decorator]
def _drawn(  # type: ignore[no-untyped-def]
    own,
    vocabulary,
    lowest,
    peak,
    scale,
    uniform,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """The first token at which the running sum of the weights exceeds its share `uniform`."""
    total, last = tl.full([], 0, tl.float64), 0
    for begin in range(0, vocabulary, BLOCK):
        mass = tl.sum(_kept(own, begin, vocabulary, lowest, peak, scale, BLOCK), 0)
        total += mass
        last = tl.where(mass > 0, begin, last)
    left = uniform * total
    begin = 0
    mass = tl.sum(_kept(own, begin, vocabulary, lowest, peak, scale, BLOCK), 0)
    while (mass <= left) & (begin < last):
        left -= mass
        begin += BLOCK
        mass = tl.sum(_kept(own, begin, vocabulary, lowest, peak, scale, BLOCK), 0)
    weights = _kept(own, begin, vocabulary, lowest, peak, scale, BLOCK)
    token = begin + tl.arange(0, BLOCK)
    # Despite rounding, exactly one token must be chosen, and none that was left out.
    end = tl.max(tl.where(weights > 0, token, 0), 0)
    found = (weights > 0) & (tl.cumsum(weights.to(tl.float64), 0) > left)
    return tl.min(tl.where(found, token, end), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _kept(  # type: ignore[no-untyped-def]
    own,
    begin,
    vocabulary,
    lowest,
    peak,
    scale,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Weights of BLOCK tokens; 0 for tokens that are left out."""
    x, _ = _block(own, begin, vocabulary, BLOCK)
    return tl.where(x >= lowest, _weights(x, peak, scale), 0.0)
