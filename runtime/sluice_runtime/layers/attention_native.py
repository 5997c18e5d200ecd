"""Paged attention by the compiled kernels: rows that extend and rows that decode in one call.

Nothing is gathered or masked: the kernels read the pool where it lies. Knows nothing of requests.
"""

from __future__ import annotations

from sluice_kernels import native
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.norm import HeadNorm
from sluice_runtime.layers.rope import Angles
from sluice_runtime.layers.token_layout import TokenLayout


class NativeAttention:
    """Attention of one step."""

    def __init__(self, pool: PagePool, layout: TokenLayout, angles: Angles) -> None:
        self._pool = pool.data
        self._scale: float = pool.shape.head_dim**-0.5
        self._layout = layout
        self._angles = angles

    def attend(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        """See `layers.attention.Attention`."""
        layout, angles = self._layout, self._angles
        weight, eps = (head_norm.weight, head_norm.eps) if head_norm else (None, 0.0)
        queries = native.rotate_and_store(
            qkv,
            weight,
            eps,
            angles.cos,
            angles.sin,
            self._pool,
            layer,
            layout.pages,
            layout.offsets,
        )
        return native.paged_attention(
            queries,
            self._pool,
            layer,
            layout.page_table,
            layout.rows,
            layout.begins,
            layout.contexts,
            self._scale,
        )
