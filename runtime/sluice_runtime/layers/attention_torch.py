"""Paged attention in plain torch: the reference, and the implementation where no kernel was built.

Extend rows are computed one by one; decode rows in spans of similar length, which gather little
padding and no more than stays in a core's cache. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.norm import HeadNorm, rms_norm
from sluice_runtime.layers.rope import Angles, rotate, rotation
from sluice_runtime.layers.token_layout import TokenLayout

SPAN_BYTES: Final = 1 << 20
"""Keys and values of one layer that decode rows gather at a time."""


@dataclass(frozen=True)
class ExtendSpan:
    """One extend row: flat tokens [begin, end), which are the row's last `end - begin` tokens."""

    begin: int
    end: int
    context: int
    page_ids: Tensor
    """[pages that hold `context` tokens]."""
    mask: Tensor | None
    """[tokens, context], added to scores; None when the row begins with this span."""


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

    def __init__(self, pool: PagePool, layout: TokenLayout, angles: Angles) -> None:
        self._pool = pool
        self._layout = layout
        self._turn = rotation(angles, pool.shape.dtype)
        self._extends = list(_extend_spans(pool, layout))
        self._decodes = list(_decode_spans(pool, layout))

    def attend(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        """See `layers.attention.Attention`."""
        kv_heads = self._pool.shape.kv_heads
        # Queries and keys are treated alike.
        turning, values = qkv.tensor_split((qkv.shape[1] - kv_heads,), dim=1)
        if head_norm is not None:
            turning = rms_norm(turning, head_norm.weight, head_norm.eps)
        turned = rotate(turning, self._turn)
        queries, keys = turned.tensor_split((turned.shape[1] - kv_heads,), dim=1)
        self._pool.write(layer, self._layout.pages, self._layout.offsets, keys, values)
        out = torch.empty_like(queries)
        for span in self._extends:
            rows = slice(span.begin, span.end)
            if span.mask is None:
                # Nothing of the row is in the pool yet: it attends to its own tokens only.
                out[rows] = _extend(queries[rows], keys[rows], values[rows], None)
            else:
                known_keys, known_values = self._pool.gather(layer, span.page_ids)
                known = known_keys[: span.context], known_values[: span.context]
                out[rows] = _extend(queries[rows], *known, span.mask)
        for decode in self._decodes:
            known_keys, known_values = self._pool.gather(layer, decode.page_ids)
            out[decode.tokens] = _decode(
                queries[decode.tokens], known_keys, known_values, decode.mask
            )
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


def _extend_spans(pool: PagePool, layout: TokenLayout) -> Iterator[ExtendSpan]:
    begins = layout.begins.tolist()
    contexts = layout.contexts[: layout.extends].tolist()
    for i, context in enumerate(contexts):
        pages = layout.page_table[layout.rows[i], : -(-context // pool.page_size)]
        mask = _causal_mask(begins[i + 1] - begins[i], context, pool.shape.dtype)
        yield ExtendSpan(begins[i], begins[i + 1], context, pages, mask)


def _decode_spans(pool: PagePool, layout: TokenLayout) -> Iterator[DecodeSpan]:
    """The decode rows, shortest first, cut into spans of SPAN_BYTES, one row at least."""
    contexts, order = layout.contexts[layout.extends :].sort()
    rows = layout.rows[layout.extends :][order]
    tokens = layout.begins[layout.extends : -1][order]
    slots = SPAN_BYTES // (pool.shape.bytes_per_token // pool.shape.layers)
    pages = (-(-contexts // pool.page_size)).tolist()
    begin = 0
    for end in range(1, len(pages) + 1):
        if end == len(pages) or (end + 1 - begin) * pages[end] * pool.page_size > slots:
            page_ids = layout.page_table[:, : pages[end - 1]][rows[begin:end]]
            mask = _length_mask(contexts[begin:end], pages[end - 1] * pool.page_size, pool)
            yield DecodeSpan(tokens[begin:end], page_ids, mask)
            begin = end


def _causal_mask(tokens: int, context: int, dtype: torch.dtype) -> Tensor | None:
    if tokens == context:
        return None
    hidden = torch.full((tokens, context), float("-inf"), dtype=dtype)
    return hidden.triu(context - tokens + 1)


def _length_mask(contexts: Tensor, slots: int, pool: PagePool) -> Tensor:
    beyond = torch.arange(slots) >= contexts[:, None]
    mask = torch.zeros(beyond.shape, dtype=pool.shape.dtype)
    return mask.masked_fill_(beyond, float("-inf"))[:, None, None]
