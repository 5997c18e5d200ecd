"""Paged attention in plain torch: the reference, and the backend for CPUs.

Extend rows are computed one by one, decode rows span by span over their padded page tables. Knows
nothing of requests.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.token_layout import DecodeSpan, ExtendSpan, TokenLayout


class TorchAttention:
    """Attention of one step; masks are made once and serve all layers."""

    def __init__(self, pool: PagePool, layout: TokenLayout) -> None:
        self._pool = pool
        self._layout = layout
        dtype = pool.shape.dtype
        self._extends = [(span, _causal_mask(span, dtype)) for span in layout.extends]
        self._decodes = [
            (span, _length_mask(span, pool.page_size, dtype)) for span in layout.decodes
        ]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See `layers.attention.Attention`."""
        self._pool.write(layer, self._layout.pages, self._layout.offsets, keys, values)
        out = torch.empty_like(queries)
        for span, mask in self._extends:
            rows = slice(span.begin, span.end)
            if mask is None:
                # Nothing of the row is in the pool yet: it attends to what it brings.
                out[rows] = _extend(queries[rows], keys[rows], values[rows], None)
            else:
                known_keys, known_values = self._pool.gather(layer, span.page_ids)
                upto = span.context
                out[rows] = _extend(queries[rows], known_keys[:upto], known_values[:upto], mask)
        for decode, mask in self._decodes:
            rows = slice(decode.begin, decode.end)
            known_keys, known_values = self._pool.gather(layer, decode.page_ids)
            out[rows] = _decode(queries[rows], known_keys, known_values, mask)
        return out


def _extend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """queries [n, head, dim]; keys, values [context, kv_head, dim] → [n, head, dim]."""
    q, k, v = (x.transpose(0, 1)[None] for x in (queries, keys, values))
    attended = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


def _decode(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """queries [rows, head, dim]; keys, values [rows, slots, kv_head, dim] → [rows, head, dim].

    The query heads that share a key head are its query positions: nothing is repeated.
    """
    rows, heads, dim = queries.shape
    attended = F.scaled_dot_product_attention(
        queries.view(rows, keys.shape[2], -1, dim),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=mask,
    )
    return attended.reshape(rows, heads, dim)


def _causal_mask(span: ExtendSpan, dtype: torch.dtype) -> Tensor | None:
    """[tokens, context], added to scores; None when the row begins with this span."""
    tokens = span.end - span.begin
    if tokens == span.context:
        return None
    hidden = torch.full((tokens, span.context), float("-inf"), dtype=dtype)
    return hidden.triu(span.context - tokens + 1)


def _length_mask(span: DecodeSpan, page_size: int, dtype: torch.dtype) -> Tensor:
    """[rows, 1, 1, slots], added to scores: the same for all heads."""
    slots = span.page_ids.shape[1] * page_size
    beyond = torch.arange(slots) >= span.contexts[:, None]
    mask = torch.zeros(beyond.shape, dtype=dtype).masked_fill_(beyond, float("-inf"))
    return mask[:, None, None]
