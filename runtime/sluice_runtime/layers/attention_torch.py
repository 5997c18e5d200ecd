"""Paged attention in plain torch: the reference, and the implementation where no kernel was built.

Extend rows are computed one by one; decode rows in spans of similar length, which gather little
padding and no more than stays in a core's cache. Knows nothing of requests.
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
from sluice_runtime.layers.attention import TokenLayout
from sluice_runtime.layers.dense import HeadNorm
from sluice_runtime.layers.rope import Angles, rotate_and_store, rotation

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
        queries, keys, values = rotate_and_store(
            qkv, head_norm, self._turn, self._pool, layer, self._layout
        )
        out = torch.empty_like(queries)
        for span in self._extends:
            rows = slice(span.begin, span.end)
            if span.mask is None and self._pool.shape.scales is None:
                # Nothing of the row is in the pool yet: it attends to its own tokens only, which
                # the pool holds as they are.
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
    grouped = queries.device.type == "cpu" or (mask is None and queries.dtype.itemsize == 2)
    if not grouped:
        # Of torch's fused kernels for GPUs the one with masks, or for float32, has no groups; what
        # torch would take instead writes out all scores: gigabytes for a long context.
        group = queries.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
    q, k, v = (x.transpose(0, 1)[None] for x in (queries, keys, values))
    attended = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
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
    numbers = layout.numbers
    rows, begins = numbers.rows.tolist(), numbers.begins.tolist()
    for i, context in enumerate(numbers.contexts[: layout.extends].tolist()):
        pages = layout.page_table[rows[i], : -(-context // pool.page_size)]
        mask = _causal_mask(begins[i + 1] - begins[i], context, pool)
        yield ExtendSpan(begins[i], begins[i + 1], context, pages, mask)


def _decode_spans(pool: PagePool, layout: TokenLayout) -> Iterator[DecodeSpan]:
    """The decode rows, shortest first, cut into spans of SPAN_BYTES, one row at least."""
    contexts, order = layout.contexts[layout.extends :].sort()
    rows = layout.rows[layout.extends :][order]
    tokens = layout.begins[layout.extends : -1][order]
    slots = SPAN_BYTES // (pool.shape.bytes_per_token // pool.shape.layers)
    # The host sorts the same numbers again, so that it need not wait for the device.
    pages = np.sort(layout.numbers.page_counts(pool.page_size)[layout.extends :]).tolist()
    begin = 0
    for end in range(1, len(pages) + 1):
        if end == len(pages) or (end + 1 - begin) * pages[end] * pool.page_size > slots:
            page_ids = layout.page_table[:, : pages[end - 1]][rows[begin:end]]
            mask = _length_mask(contexts[begin:end], pages[end - 1] * pool.page_size, pool)
            yield DecodeSpan(tokens[begin:end], page_ids, mask)
            begin = end


def _causal_mask(tokens: int, context: int, pool: PagePool) -> Tensor | None:
    if tokens == context:
        return None
    size, device = (tokens, context), pool.data.device
    hidden = torch.full(size, float("-inf"), dtype=pool.shape.dtype, device=device)
    return hidden.triu(context - tokens + 1)


def _length_mask(contexts: Tensor, slots: int, pool: PagePool) -> Tensor:
    beyond = torch.arange(slots, device=contexts.device) >= contexts[:, None]
    mask = torch.zeros(beyond.shape, dtype=pool.shape.dtype, device=contexts.device)
    return mask.masked_fill_(beyond, float("-inf"))[:, None, None]
