"""What happens to a step's queries, keys and values before attention: head norm, rotation, and keys
and values into the pool. In torch on any device; on NVIDIA's GPUs one kernel. Knows no requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.norm import HeadNorm, rms_norm
from sluice_runtime.layers.rope import Angles, Rotation, rotate, rotation
from sluice_runtime.layers.token_layout import TokenLayout


class StoringStep(Protocol):
    """One step, over all layers."""

    def queries(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        """qkv [n, heads + 2 x key heads, dim] → [n, heads, dim]; keys and values are stored."""
        ...


def storing_step(pool: PagePool, layout: TokenLayout, angles: Angles) -> StoringStep:
    """By the kernel where the pool is on an NVIDIA GPU, whose numbers of 16 bits it computes in 32.
    It leaves the padding page as it is, so that padding rows touch nothing."""
    if pool.data.is_cuda and torch.version.hip is None:
        return KernelStep(pool, layout, angles)
    return TorchStep(pool, layout, rotation(angles, pool.shape.dtype))


@dataclass(frozen=True)
class TorchStep:
    """See `StoringStep`."""

    pool: PagePool
    layout: TokenLayout
    turn: Rotation

    def queries(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        return rotate_and_store(qkv, head_norm, self.turn, self.pool, layer, self.layout)[0]


@dataclass(frozen=True)
class KernelStep:
    """See `StoringStep`."""

    pool: PagePool
    layout: TokenLayout
    angles: Angles

    def queries(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        # Registered where there is a GPU only.
        from sluice_kernels.triton import operators

        weight, eps = (head_norm.weight, head_norm.eps) if head_norm else (None, 0.0)
        angles, layout = self.angles, self.layout
        return operators.rotate_and_store(
            qkv,
            weight,
            eps,
            angles.cos,
            angles.sin,
            self.pool.data,
            layer,
            layout.pages,
            layout.offsets,
        )


def rotate_and_store(
    qkv: Tensor,
    head_norm: HeadNorm | None,
    turn: Rotation,
    pool: PagePool,
    layer: int,
    layout: TokenLayout,
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [n, heads + 2 x key heads, dim] → queries [n, heads, dim], keys and values [n, key heads,
    dim]: views, the last dimension contiguous."""
    kv_heads = pool.shape.kv_heads
    # Queries and keys are treated alike.
    turning, values = qkv.tensor_split((qkv.shape[1] - kv_heads,), dim=1)
    if head_norm is not None:
        turning = rms_norm(turning, head_norm.weight, head_norm.eps)
    turned = rotate(turning, turn)
    queries, keys = turned.tensor_split((turned.shape[1] - kv_heads,), dim=1)
    pool.write(layer, layout.pages, layout.offsets, keys, values)
    return queries, keys, values
