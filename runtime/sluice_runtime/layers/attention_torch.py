"""Paged attention in plain torch: the reference, and the implementation where no kernel was built.

Extend rows are computed one by one, long ones in pieces, so that masks stay small. Decode rows are
computed in spans of similar length, so that little padding is gathered: on CPUs as much as fits a
core's cache, on GPUs as much as is worth one launch. Of a window only the pages that it touches are
gathered. Knows nothing of requests. `sizing.gpu_plan` counts the GPU memory that this takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import AttentionRule, TokenLayout
from sluice_runtime.layers.dense import HeadNorm
from sluice_runtime.layers.rope import Angles, rotate_and_store, rotation

SPAN_BYTES: Final = 1 << 20
"""Bytes of one layer's keys and values that decode rows gather at a time on CPUs."""
GPU_SPAN_BYTES: Final = 256 << 20
"""Bytes of one layer's keys and values that decode rows gather at a time on GPUs, where each span
costs several launches."""
MASK_BYTES: Final = 128 << 20
"""Most bytes of an extend row's mask, and of all masks together that are kept for other layers.
Making a mask takes its size again."""
_ALIGNED: Final = 16
"""Alignment of mask rows, in values: torch's GPU kernels need it, and other masks would be
copied."""


@dataclass(frozen=True)
class ExtendSpan:
    """One extend row: flat tokens [begin, end), which are the row's last `end - begin` tokens."""

    begin: int
    end: int
    known: int
    """Number of the row's tokens in `page_ids`."""
    page_ids: Tensor
    """The row's last pages [pages], as far back as the span's tokens attend."""
    begins_row: bool
    """Whether the span begins its row. Then nothing of the row was in the pool, and plain causal
    attention within the span needs no mask."""

    @property
    def tokens(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class DecodeSpan:
    """Decode rows of similar length."""

    tokens: Tensor
    """Flat tokens of the rows [rows]."""
    page_ids: Tensor
    """Pages [rows, pages of the longest]."""
    mask: Tensor
    """Mask [rows, 1, 1, slots] that is added to scores, equal for all heads. With sinks there is
    one more slot at the end, visible to all rows."""


class TorchAttention:
    """Attention of one step. Masks are made once for all layers, except masks of extend rows that
    are too large to keep."""

    def __init__(
        self,
        pool: PagePool,
        layout: TokenLayout,
        angles: Angles,
        rule: AttentionRule | None = None,
    ) -> None:
        self._pool = pool
        self._layout = layout
        self._turn = rotation(angles, pool.shape.dtype)
        self._rule = rule or AttentionRule()
        window = self._rule.window_tokens
        self._extends = list(_extend_spans(pool, layout, window))
        self._decodes = list(_decode_spans(pool, layout, self._rule))
        self._masks: dict[tuple[int, int], Tensor] = {}
        """Masks of extend rows, by flat tokens [begin, end)."""
        self._kept_bytes = 0

    def attend(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        """See `layers.attention.Attention`."""
        queries, keys, values = rotate_and_store(
            qkv, head_norm, self._turn, self._pool, layer, self._layout
        )
        out = torch.empty_like(queries)
        for span in self._extends:
            rows = slice(span.begin, span.end)
            self._extend(layer, span, queries[rows], (keys[rows], values[rows]), out[rows])
        for decode in self._decodes:
            out[decode.tokens] = self._decode(layer, decode, queries[decode.tokens])
        return out

    def _extend(
        self,
        layer: int,
        span: ExtendSpan,
        queries: Tensor,
        known: tuple[Tensor, Tensor],
        out: Tensor,
    ) -> None:
        """Attends with one extend row. queries, out: [span's tokens, head, dim]; known: their keys
        and values."""
        # A pool of 8 bits does not hold these keys and values exactly.
        if not span.begins_row or self._pool.shape.scales is not None:
            keys, values = self._pool.gather(layer, span.page_ids)
            known = keys[: span.known], values[: span.known]
        dim, sinks = queries.shape[-1], self._rule.sinks.get(layer)
        scale = dim**-0.5
        if span.begins_row and sinks is None:
            out.copy_(_extend(queries, *known, None, scale))
            return
        copies = 1 if _on_cpu(queries) else queries.shape[1] // known[0].shape[1]
        slots = span.known
        if sinks is not None:
            queries, keys, values = _with_sinks(queries, *known, sinks / scale)
            known, slots = (keys, values), slots + 1
        token_bytes = copies * _aligned(span.known + 1) * self._pool.shape.dtype.itemsize
        tokens = max(1, MASK_BYTES // token_bytes)
        for begin in range(0, span.tokens, tokens):
            piece = slice(begin, min(begin + tokens, span.tokens))
            mask = self._mask(span, piece, copies)[:, :slots]
            out[piece] = _extend(queries[piece], *known, mask, scale)[..., :dim]

    def _decode(self, layer: int, span: DecodeSpan, queries: Tensor) -> Tensor:
        """Output [rows, head, dim] of the span's tokens."""
        keys, values = self._pool.gather(layer, span.page_ids)
        dim, sinks = queries.shape[-1], self._rule.sinks.get(layer)
        scale = dim**-0.5
        if sinks is not None:
            queries, keys, values = _with_sinks(queries, keys, values, sinks / scale)
        return _decode(queries, keys, values, span.mask[..., : keys.shape[1]], scale)[..., :dim]

    def _mask(self, span: ExtendSpan, piece: slice, copies: int) -> Tensor:
        """`_causal_mask` of the piece, repeated `copies` times."""
        key = span.begin + piece.start, span.begin + piece.stop
        if (kept := self._masks.get(key)) is not None:
            return kept
        mask = _causal_mask(span, piece, self._rule.window_tokens, self._pool)
        mask = mask.expand(copies, *mask.shape).flatten(0, 1)
        if self._kept_bytes + mask.nbytes <= MASK_BYTES:
            self._masks[key] = mask
            self._kept_bytes += mask.nbytes
        return mask


def _on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu"


def _aligned(values: int) -> int:
    return -(-values // _ALIGNED) * _ALIGNED


def _with_sinks(
    queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with one more token at the end, whose score is a query head's sink
    and whose value is zero. queries: [n, head, dim]; keys, values: [..., tokens, kv_head, dim];
    sinks: [head]. `dim` grows by eight: one dimension holds the sinks' scores, seven zeros keep
    rows aligned."""
    wide = F.pad(queries, (0, 8))
    wide[..., queries.shape[-1]] = sinks
    keys, values = (F.pad(x, (0, 8, 0, 0, 0, 1)) for x in (keys, values))
    keys[..., -1, :, queries.shape[-1]] = 1
    return wide, keys, values


def _extend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Attention of one extend row: queries [n, head, dim]; keys, values [known, kv_head, dim] → [n,
    head, dim]. mask: [n, known]; on GPUs repeated for each query head of a key head, [heads /
    kv_heads x n, known]."""
    if mask is not None and not _on_cpu(queries):
        return _extend_folded(queries, keys, values, mask, scale)
    grouped = _on_cpu(queries) or queries.dtype.itemsize == 2
    if not grouped:
        # torch's fused GPU kernel for float32 has no grouped heads. Its fallback writes out all
        # scores, which takes gigabytes for a long context.
        group = queries.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
    q, k, v = (x.transpose(0, 1)[None] for x in (queries, keys, values))
    attended = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )
    return attended[0].transpose(0, 1)


def _extend_folded(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """Output of `_extend` on GPUs. The fused kernel with masks has no grouped heads, so query heads
    that share a key head are passed as further query positions, as in `_decode`. No key is
    repeated."""
    tokens, heads, dim = queries.shape
    kv_heads = keys.shape[1]
    # [kv_head, group x n, dim]
    folded = queries.view(tokens, kv_heads, -1, dim).permute(1, 2, 0, 3).flatten(1, 2)
    k, v = (x.transpose(0, 1)[None] for x in (keys, values))
    attended = F.scaled_dot_product_attention(folded[None], k, v, attn_mask=mask, scale=scale)
    by_head = attended[0].reshape(heads, tokens, dim)
    return by_head.transpose(0, 1)


def _decode(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """queries [rows, head, dim]; keys, values [rows, slots, kv_head, dim] → [rows, head, dim].

    Query heads that share a key head are passed as query positions of it, so that no key is
    repeated.
    """
    rows, heads, dim = queries.shape
    attended = F.scaled_dot_product_attention(
        queries.view(rows, keys.shape[2], -1, dim),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=mask,
        scale=scale,
    )
    return attended.reshape(rows, heads, dim)


def _extend_spans(pool: PagePool, layout: TokenLayout, window: int | None) -> Iterator[ExtendSpan]:
    numbers = layout.numbers
    rows, begins = numbers.rows.tolist(), numbers.begins.tolist()
    for i, context in enumerate(numbers.contexts[: layout.extends].tolist()):
        tokens = begins[i + 1] - begins[i]
        # The first token attends furthest back.
        oldest = 0 if window is None else max(0, context - tokens - window + 1)
        first = oldest // pool.page_size
        pages = layout.page_table[rows[i], first : -(-context // pool.page_size)]
        known = context - first * pool.page_size
        begins_row = tokens == known and (window is None or known <= window)
        yield ExtendSpan(begins[i], begins[i + 1], known, pages, begins_row)


def _decode_spans(pool: PagePool, layout: TokenLayout, rule: AttentionRule) -> Iterator[DecodeSpan]:
    """The decode rows in spans, shortest rows first; a span has at most SPAN_BYTES, but at least
    one row."""
    window = rule.window_tokens
    contexts, order = layout.contexts[layout.extends :].sort()
    rows = layout.rows[layout.extends :][order]
    tokens = layout.begins[layout.extends : -1][order]
    span_bytes = SPAN_BYTES if _on_cpu(pool.data) else GPU_SPAN_BYTES
    slots = span_bytes // (pool.shape.bytes_per_token // pool.shape.layers)
    # The host sorts its own copy of the numbers, so that it does not wait for the device.
    counts = np.sort(layout.numbers.page_counts(pool.page_size)[layout.extends :])
    pages = counts if window is None else counts.clip(max=_window_pages(window, pool.page_size))
    most, begin = pages.tolist(), 0
    for end in range(1, len(most) + 1):
        if end == len(most) or (end + 1 - begin) * most[end] * pool.page_size > slots:
            own = rows[begin:end], contexts[begin:end], most[end - 1]
            page_ids, mask = _last_pages(pool, layout, own, window)
            # One more slot, for the sink.
            mask = F.pad(mask, (0, 1)) if rule.sinks else mask
            yield DecodeSpan(tokens[begin:end], page_ids, mask)
            begin = end


def _window_pages(window: int, page_size: int) -> int:
    """Most pages that a window can touch; at least one of its tokens is in the last page."""
    return 1 - (1 - window) // page_size


def _last_pages(
    pool: PagePool, layout: TokenLayout, span: tuple[Tensor, Tensor, int], window: int | None
) -> tuple[Tensor, Tensor]:
    """Page ids and mask of a `DecodeSpan`. span: rows [r], their contexts [r], and the most pages
    that a row reads."""
    rows, contexts, most = span
    places = torch.arange(most * pool.page_size, device=contexts.device)
    if window is None:
        return layout.page_table[:, :most][rows], _added(places >= contexts[:, None], pool)
    first = ((contexts + (pool.page_size - 1)) // pool.page_size - most).clamp_(min=0)
    ends = (contexts - first * pool.page_size)[:, None]
    page_ids = layout.page_table[rows[:, None], first[:, None] + places[:most]]
    return page_ids, _added((places >= ends) | (places < ends - window), pool)


def _added(hidden: Tensor, pool: PagePool) -> Tensor:
    """Mask that is added to scores: [rows, slots] → [rows, 1, 1, slots]."""
    mask = torch.zeros(hidden.shape, dtype=pool.shape.dtype, device=hidden.device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None, None]


def _causal_mask(span: ExtendSpan, piece: slice, window: int | None, pool: PagePool) -> Tensor:
    """Mask [tokens of the piece, known and padding] that is added to scores. Slots after `known`,
    where a sink may be, are visible to all tokens."""
    shape = piece.stop - piece.start, _aligned(span.known + 1)
    hidden = torch.full(shape, float("-inf"), dtype=pool.shape.dtype, device=pool.data.device)
    own = span.known - span.tokens + piece.start
    mask = hidden.triu(own + 1)
    if window is not None:
        mask += hidden.tril_(own - window)
    mask[:, span.known :] = 0
    return mask
