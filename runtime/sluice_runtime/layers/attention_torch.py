"""Paged attention in plain torch: the reference, and the implementation where no kernel was built.

Extend rows are computed one by one; decode rows in spans of similar length, which gather little
padding and no more than stays in a core's cache. Of a window only the pages that it touches are
gathered. Knows nothing of requests.
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
"""Keys and values of one layer that decode rows gather at a time."""


@dataclass(frozen=True)
class ExtendSpan:
    """One extend row: flat tokens [begin, end), which are the row's last `end - begin` tokens."""

    begin: int
    end: int
    known: int
    """Tokens of the row in `page_ids`."""
    page_ids: Tensor
    """[pages] the last ones of the row, as far back as these tokens attend."""
    mask: Tensor | None
    """[tokens, known], added to scores; None when the row begins with this span."""


@dataclass(frozen=True)
class DecodeSpan:
    """Decode rows of similar length."""

    tokens: Tensor
    """[rows] their flat tokens."""
    page_ids: Tensor
    """[rows, pages of the longest]."""
    mask: Tensor
    """[rows, 1, 1, slots], added to scores: the same for all heads."""


class TorchAttention:
    """Attention of one step; masks are made once and serve all layers."""

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
        self._decodes = list(_decode_spans(pool, layout, window))

    def attend(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        """See `layers.attention.Attention`."""
        queries, keys, values = rotate_and_store(
            qkv, head_norm, self._turn, self._pool, layer, self._layout
        )
        scale, sinks = queries.shape[-1] ** -0.5, self._rule.sinks.get(layer)
        out = torch.empty_like(queries)
        for span in self._extends:
            rows = slice(span.begin, span.end)
            # Where nothing of the row is in the pool yet, it attends to its own tokens only, if the
            # pool holds them as they are.
            known, mask = (keys[rows], values[rows]), span.mask
            if mask is not None or self._pool.shape.scales is not None:
                known_keys, known_values = self._pool.gather(layer, span.page_ids)
                known = known_keys[: span.known], known_values[: span.known]
            if sinks is None:
                out[rows] = _extend(queries[rows], *known, mask, scale)
                continue
            sunk = _with_sinks(queries[rows], *known, sinks / scale)
            wider = _sink_mask(mask, rows.stop - rows.start, queries)
            out[rows] = _extend(*sunk, wider, scale)[..., : queries.shape[-1]]
        for decode in self._decodes:
            known, tokens = self._pool.gather(layer, decode.page_ids), decode.tokens
            if sinks is None:
                out[tokens] = _decode(queries[tokens], *known, decode.mask, scale)
                continue
            sunk = _with_sinks(queries[tokens], *known, sinks / scale)
            wider = F.pad(decode.mask, (1, 0))
            out[tokens] = _decode(*sunk, wider, scale)[..., : queries.shape[-1]]
        return out


def _with_sinks(
    queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """queries [n, head, dim]; keys, values [..., tokens, kv_head, dim]; sinks [head] → the same
    with one token more, the first, to which a query head's score is its sink and whose value is
    zero. A dimension more holds these scores; seven others, which are zero, keep rows aligned."""
    wide = F.pad(queries, (0, 8))
    wide[..., queries.shape[-1]] = sinks
    keys, values = (F.pad(x, (0, 8, 0, 0, 1, 0)) for x in (keys, values))
    keys[..., 0, :, queries.shape[-1]] = 1
    return wide, keys, values


def _sink_mask(mask: Tensor | None, tokens: int, like: Tensor) -> Tensor:
    """[tokens, known] → [tokens, 1 + known], the first of which all see."""
    if mask is None:
        mask = _hidden_after(tokens, tokens, like.dtype, like.device)
    return F.pad(mask, (1, 0))


def _extend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """queries [n, head, dim]; keys, values [known, kv_head, dim] → [n, head, dim]."""
    grouped = queries.device.type == "cpu" or (mask is None and queries.dtype.itemsize == 2)
    if not grouped:
        # Of torch's fused kernels for GPUs the one with masks, or for float32, has no groups; what
        # torch would take instead writes out all scores: gigabytes for a long context.
        group = queries.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
    q, k, v = (x.transpose(0, 1)[None] for x in (queries, keys, values))
    attended = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )
    return attended[0].transpose(0, 1)


def _decode(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """queries [rows, head, dim]; keys, values [rows, slots, kv_head, dim] → [rows, head, dim].

    The query heads that share a key head are its query positions: nothing is repeated.
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
        # The first token sees the farthest.
        oldest = 0 if window is None else max(0, context - tokens - window + 1)
        first = oldest // pool.page_size
        pages = layout.page_table[rows[i], first : -(-context // pool.page_size)]
        known = context - first * pool.page_size
        mask = _causal_mask(tokens, known, window, pool)
        yield ExtendSpan(begins[i], begins[i + 1], known, pages, mask)


def _decode_spans(pool: PagePool, layout: TokenLayout, window: int | None) -> Iterator[DecodeSpan]:
    """The decode rows, shortest first, cut into spans of SPAN_BYTES, one row at least."""
    contexts, order = layout.contexts[layout.extends :].sort()
    rows = layout.rows[layout.extends :][order]
    tokens = layout.begins[layout.extends : -1][order]
    slots = SPAN_BYTES // (pool.shape.bytes_per_token // pool.shape.layers)
    # The host sorts the same numbers again, so that it need not wait for the device.
    counts = np.sort(layout.numbers.page_counts(pool.page_size)[layout.extends :])
    pages = counts if window is None else counts.clip(max=_window_pages(window, pool.page_size))
    most, begin = pages.tolist(), 0
    for end in range(1, len(most) + 1):
        if end == len(most) or (end + 1 - begin) * most[end] * pool.page_size > slots:
            own = rows[begin:end], contexts[begin:end], most[end - 1]
            yield DecodeSpan(tokens[begin:end], *_last_pages(pool, layout, own, window))
            begin = end


def _window_pages(window: int, page_size: int) -> int:
    """At most, that it touches: one token at least is in the last one."""
    return 1 - (1 - window) // page_size


def _last_pages(
    pool: PagePool, layout: TokenLayout, span: tuple[Tensor, Tensor, int], window: int | None
) -> tuple[Tensor, Tensor]:
    """Of rows, [r], their contexts, [r], and the most pages that one reads: page ids and mask of a
    `DecodeSpan`."""
    rows, contexts, most = span
    places = torch.arange(most * pool.page_size, device=contexts.device)
    if window is None:
        return layout.page_table[:, :most][rows], _added(places >= contexts[:, None], pool)
    first = ((contexts + (pool.page_size - 1)) // pool.page_size - most).clamp_(min=0)
    ends = (contexts - first * pool.page_size)[:, None]
    page_ids = layout.page_table[rows[:, None], first[:, None] + places[:most]]
    return page_ids, _added((places >= ends) | (places < ends - window), pool)


def _added(hidden: Tensor, pool: PagePool) -> Tensor:
    """[rows, slots] → [rows, 1, 1, slots]: what is added to scores."""
    mask = torch.zeros(hidden.shape, dtype=pool.shape.dtype, device=hidden.device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None, None]


def _causal_mask(tokens: int, known: int, window: int | None, pool: PagePool) -> Tensor | None:
    if tokens == known and (window is None or known <= window):
        return None
    hidden = _hidden_after(tokens, known, pool.shape.dtype, pool.data.device)
    if window is None:
        return hidden
    return hidden + torch.full_like(hidden, float("-inf")).tril(known - tokens - window)


def _hidden_after(tokens: int, known: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[tokens, known] what hides from each of the last tokens those after it."""
    return torch.full((tokens, known), float("-inf"), dtype=dtype, device=device).triu(
        known - tokens + 1
    )
