"""Reference of each kernel in plain torch and float32: slow and short; tests compare the kernels
with it.

Shapes: n tokens of a step, flat over its rows; h heads, k key heads, d numbers a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_kernels.packed import Grouping, PackedMatrix, dequantised


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) x weight: [n, width], [width] → [n, width]."""
    wide = x.float()
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * scale * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm of x + delta, a sum that is stored in x: [n, width] each."""
    x.copy_(x.float() + delta.float())
    return rms_norm(x, weight, eps)


def silu_and_multiply(gate_up: Tensor) -> Tensor:
    """silu(gate) x up: [n, 2 x width], gate first → [n, width]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate / (1 + (-gate).exp()) * up).to(gate_up.dtype)


def int8_product(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """x (values x scales)^T: [n, in], [out, in] of int8, [out] → [n, out]."""
    return (x.float() @ values.float().T * scales).to(x.dtype)


def packed_product(
    x: Tensor,
    matrix: PackedMatrix,
    bias: Tensor | None = None,
    grouping: Grouping | None = None,
) -> Tensor:
    """x matrix^T + bias: [n, in] and bias [out] → [n, out]. With a grouping, rows are sorted by
    expert; matrix and bias have another dimension of experts, and there are as many rows as
    `counts` adds up to."""
    weight = dequantised(matrix)
    if grouping is None:
        return _product(x, weight, bias).to(x.dtype)
    counts = grouping.counts.tolist()
    own = x if grouping.reads is None else x[grouping.reads // grouping.top]
    biases = [None] * len(counts) if bias is None else bias
    parts = zip(torch.split(own, counts), weight, biases, strict=True)
    rows = torch.cat([_product(*part) for part in parts]).to(x.dtype)
    if grouping.writes is None:
        return rows
    return torch.empty_like(rows).index_copy_(0, grouping.writes.long(), rows)


def choose_experts(logits: Tensor, top: int, renormalised: bool) -> tuple[Tensor, Tensor]:
    """The `top` experts of each token, int32, and their shares in the type of the logits: [n, e] →
    [n, top] each. Probabilities are computed in float32; shares add up to 1 if `renormalised`."""
    probabilities = logits.softmax(-1, dtype=torch.float32)
    shares, best = probabilities.topk(top, dim=-1)
    if renormalised:
        shares = shares / shares.sum(-1, keepdim=True)
    return best.int(), shares.to(logits.dtype)


def sort_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Places in `chosen` [n, k], sorted by expert: [n x k], and their numbers [experts]; int32."""
    flat = chosen.flatten()
    counts = torch.bincount(flat, minlength=experts)
    return flat.argsort(stable=True).int(), counts.int()


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """gate x sigmoid(alpha x gate) x (up + 1), with gate at most `limit`, and up from -`limit` to
    `limit`: [n, 2 x width], gate first → [n, width]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * (alpha * gate).sigmoid() * (up + 1)).to(gate_up.dtype)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x.float(), weight, None if bias is None else bias.float())


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
    """Queries and keys normed and rotated; keys and values stored at [pages, layer, :, offsets].

    qkv: [n, h + 2 x k, d]; head_norm: [h + k, d]; cos, sin: [n, d / 2], float32; pool: [page,
    layer, 2, token, k, d]; pages, offsets: [n] → queries [n, h, d].
    """
    kv_heads = pool.shape[4]
    turning, values = qkv.float().tensor_split((qkv.shape[1] - kv_heads,), dim=1)
    if head_norm is not None:
        scale = (turning.square().mean(-1, keepdim=True) + eps).rsqrt()
        turning = turning * scale * head_norm.float()
    first, second = turning.chunk(2, dim=-1)
    c, s = cos[:, None], sin[:, None]
    turned = torch.cat((first * c - second * s, second * c + first * s), -1).to(qkv.dtype)
    queries, keys = turned.tensor_split((turned.shape[1] - kv_heads,), dim=1)
    pool[pages, layer, 0, offsets] = keys
    pool[pages, layer, 1, offsets] = values.to(qkv.dtype)
    return queries


def rotate_and_store_padded(
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
    """rotate_and_store for a pool whose last page is padding: keys and values for that page, or for
    a page number out of range, are not stored. So a graph's padding rows write nothing."""
    padding = len(pool) - 1
    before = pool[padding].clone()
    held = pages.masked_fill((pages < 0) | (pages > padding), padding).long()
    queries = rotate_and_store(qkv, head_norm, eps, cos, sin, pool, layer, held, offsets.long())
    pool[padding] = before
    return queries


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
    """Each query attends to its row's tokens up to itself; the pool holds their keys and values.

    queries: [n, h, d]; page_table: [any, most pages]. Row i is `rows[i]` of the page table; its
    queries are the flat tokens [begins[i], begins[i + 1]), the last of its contexts[i] tokens.
    """
    out = torch.empty_like(queries)
    page_size = pool.shape[3]
    group = queries.shape[1] // pool.shape[4]
    for i, (row, context) in enumerate(zip(rows.tolist(), contexts.tolist(), strict=True)):
        span = slice(int(begins[i]), int(begins[i + 1]))
        held = pool[page_table[row, : -(-context // page_size)], layer]  # [page, 2, token, k, d]
        keys, values = held.transpose(0, 1).flatten(1, 2)[:, :context].float()
        keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
        scores = torch.einsum("nhd,chd->hnc", queries[span].float(), keys) * scale
        first = context - (span.stop - span.start)
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(first + 1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[span] = torch.einsum("hnc,chd->nhd", weights, values).to(queries.dtype)
    return out


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor, greedy_below: float) -> Tensor:
    """One token a row of softmax(logits / temperature), by inverting its distribution.

    logits: [m, vocabulary] float32; temperatures: [m] float32; uniforms: [m] float64 in [0, 1) →
    [m]. Temperatures below `greedy_below` give the first of the most probable tokens. A row whose
    largest logit is infinite or NaN (as with any NaN in the row) has no distribution and gives -1.
    """
    peaks, tokens = logits.double().max(-1)
    finite = peaks.isfinite()
    # The largest logit is shifted to 0, so it stays 0 at every temperature.
    below = (logits.double() - peaks[:, None]) / temperatures.double().clamp_min(1e-300)[:, None]
    cumulative = below.exp().cumsum(-1)
    mass = cumulative[:, -1:]
    targets = torch.minimum(uniforms[:, None] * mass, torch.nextafter(mass, torch.zeros_like(mass)))
    drawn = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    tokens = torch.where(temperatures < greedy_below, tokens, drawn)
    return tokens.masked_fill(~finite, -1)


class DecodeTensors(NamedTuple):
    """What `decode_inputs` reads and writes in a step of b rows. Row `rows` of the table, after its
    last one, is padding: its token goes to the padding page, the only page that it lists."""

    # Read.
    rows: Tensor
    """[b] int32: places in the table."""
    contexts: Tensor
    """[b] int32: tokens of each row."""
    indptr: Tensor
    """[b + 1] int32: pages [indptr[i], indptr[i + 1]) of the list are row i's."""
    page_table: Tensor
    """[rows, most pages] int64."""
    last_tokens: Tensor
    """[rows + 1] int64."""

    # Written.
    token_ids: Tensor
    """[b] int64, as the next three."""
    positions: Tensor
    pages: Tensor
    offsets: Tensor
    indices: Tensor
    """int32: the list of all rows' pages."""

    page_size: int
    padding_page: int


def decode_inputs(step: DecodeTensors) -> None:
    """Inputs of a decode step: each row's last token, with its position, page and offset, and the
    list of all rows' pages."""
    table, rows = step.page_table, step.rows.long()
    table = torch.cat((table, torch.full_like(table[:1], step.padding_page)))
    last = step.contexts.long() - 1
    step.token_ids.copy_(step.last_tokens[rows])
    step.positions.copy_(last)
    step.pages.copy_(table[rows, last // step.page_size])
    step.offsets.copy_(last % step.page_size)
    of_page = torch.repeat_interleave(step.indptr.diff().long())
    place = torch.arange(len(of_page), device=rows.device) - step.indptr[:-1].long()[of_page]
    step.indices[: len(of_page)] = table[rows[of_page], place].int()


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """A number in [0, 1) for each (seed, position), int64: [m], [m] → [m] float64. The first 53
    bits of SplitMix64's finaliser (Steele, Lea, Flood 2014) over both."""
    golden = torch.tensor(0x9E3779B97F4A7C15 - 2**64)
    mixed = _mix(_mix(seeds.cpu()) ^ _mix(positions.cpu() + golden))
    return (_shifted(mixed, 11).double() * 2.0**-53).to(seeds.device)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shifted(value, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    value = (value ^ _shifted(value, 27)) * (0x94D049BB133111EB - 2**64)
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Shift to the right of int64 as if it had no sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def sample_rows(
    logits: Tensor, rows: Tensor, positions: Tensor, reals: Tensor, wholes: Tensor
) -> Tensor:
    """One token for each row of the logits, as `sample_columns` draws it.

    logits: [m, vocabulary]; rows, positions: [m] of int32: each one's row in the tables, and the
    position of its token; reals: [3, rows] float64: temperatures, top_p, min_p; wholes: [2, rows]
    int64: top_k and seeds → [m]. The number in [0, 1) is that of `uniforms`.
    """
    at = rows.long()
    temperatures, top_p, min_p = reals[:, at]
    top_k, seeds = wholes[:, at]
    drawn = uniforms(seeds, positions.long())
    return sample_columns(logits, torch.stack((temperatures, drawn, top_p, min_p, top_k.double())))


def sample_columns(logits: Tensor, parameters: Tensor) -> Tensor:
    """One token for each row, drawn from softmax(logits / temperature) restricted by top_k, top_p
    and min_p.

    logits: [m, vocabulary]; parameters: [5, m] float64: temperatures (0: the first of the most
    probable tokens), numbers in [0, 1), top_p, min_p and top_k (below 1: none) → [m], -1 as in
    `draw`. Each restriction is a smallest allowed logit, so equal logits are kept or left out
    together; top_p is a share of the mass that top_k leaves.
    """
    temperatures, uniforms, top_p, min_p, top_k = parameters
    scale = temperatures.clamp_min(1e-30)
    ordered = logits.double().sort(-1, descending=True).values
    peaks, size = ordered[:, :1], logits.shape[1]
    counts = torch.where(top_k < 1, size, top_k.clamp(max=size)).long()
    beyond = torch.arange(size, device=logits.device) >= counts[:, None]
    weights = ((ordered - peaks) / scale[:, None]).exp().masked_fill(beyond, 0)
    cumulative = weights.cumsum(-1)
    last = (cumulative < (top_p * cumulative[:, -1])[:, None]).sum(-1)
    last = torch.where(top_p < 1, last, counts - 1).minimum(counts - 1)
    least = ordered.gather(1, last[:, None]).squeeze(1)
    least = torch.where(min_p > 0, least.maximum(peaks.squeeze(1) + scale * min_p.log()), least)
    kept = logits.double().masked_fill(logits < least[:, None], float("-inf"))
    return draw(kept, temperatures, uniforms, 1e-30)
