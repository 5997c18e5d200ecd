"""Paged attention in plain torch: the reference, and the backend for CPUs.

Extend rows are computed one by one, decode rows together over their padded page tables. Knows
nothing of requests.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.token_layout import ExtendSpan, TokenLayout


class TorchAttention:
    """Attention of one step; masks are made once and serve all layers."""

    def __init__(self, pool: PagePool, layout: TokenLayout) -> None:
        self._pool = pool
        self._layout = layout
        self._masks = [_causal_mask(span) for span in layout.extends]
        slots = layout.decode_pages.shape[1] * pool.page_size
        filled = torch.arange(slots)[None] < layout.decode_contexts[:, None]
        # [b, 1, 1, slots]: the same for all heads.
        self._decode_mask = filled[:, None, None]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See `layers.attention.Attention`."""
        layout = self._layout
        self._pool.write(layer, layout.pages, layout.offsets, keys, values)
        out = torch.empty_like(queries)
        for span, mask in zip(layout.extends, self._masks, strict=True):
            rows = slice(span.begin, span.end)
            out[rows] = self._extend(layer, span, mask, queries[rows], keys[rows], values[rows])
        decodes = len(layout.decode_contexts)
        if decodes:
            out[-decodes:] = self._decode(layer, queries[-decodes:])
        return out

    def _extend(
        self,
        layer: int,
        span: ExtendSpan,
        mask: Tensor | None,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """A row without tokens in the pool needs no gather: it attends to what it brings."""
        if mask is not None:
            pool_keys, pool_values = self._pool.gather(layer, span.page_ids)
            keys, values = pool_keys[: span.context], pool_values[: span.context]
        # [head, token, dim], as one batch.
        q, k, v = (x.transpose(0, 1)[None] for x in (queries, keys, values))
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return attended[0].transpose(0, 1)

    def _decode(self, layer: int, queries: Tensor) -> Tensor:
        """queries: [b, head, dim]. The heads that share a key head are its query positions."""
        rows, heads, dim = queries.shape
        keys, values = self._pool.gather(layer, self._layout.decode_pages)
        kv_heads = keys.shape[2]
        attended = F.scaled_dot_product_attention(
            queries.view(rows, kv_heads, heads // kv_heads, dim),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=self._decode_mask,
        )
        return attended.reshape(rows, heads, dim)


def _causal_mask(span: ExtendSpan) -> Tensor | None:
    """[tokens, context], True where a token may look; None when the row begins with this span."""
    tokens = span.end - span.begin
    if tokens == span.context:
        return None
    return torch.ones(tokens, span.context, dtype=torch.bool).tril(span.context - tokens)
