"""A layer's computations on single tokens: RMS norm, matrix products, the gated activation. Knows
no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from sluice_kernels import native
from sluice_kernels.packed import PackedMatrix
from torch import Tensor

from sluice_runtime.layers.packed import Matrix, packed_linear


@dataclass(frozen=True)
class HeadNorm:
    """A norm over each query and key head."""

    weight: Tensor
    """[query heads + key heads, dim]."""
    eps: float


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) x weight over the last dimension.

    x: [..., d]; weight: [d], or [head, d] where each head has its own.
    """
    if weight.dtype != x.dtype:  # the weight is finer than x
        return rms_norm(x.to(weight.dtype), weight, eps).to(x.dtype)
    if weight.dim() == 1:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x, weight.shape[-1:], None, eps) * weight


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of x + delta; the sum is stored in x."""
    return rms_norm(x.add_(delta), weight, eps)


Linear = Callable[[Tensor], Tensor]
"""[n, in] → [n, out]."""


def linear(weight: Matrix, bias: Tensor | None = None) -> Linear:
    """x → x weight^T + bias for weight [out, in] and bias [out]; on a CPU reordered once for its
    matrix units."""
    if isinstance(weight, PackedMatrix):
        return packed_linear(weight, bias)
    packed = pack(weight)
    if not packed.is_mkldnn:
        return lambda x: F.linear(x, weight, bias)
    multiply = torch.ops.mkldnn._linear_pointwise

    def apply(x: Tensor) -> Tensor:
        product: Tensor = multiply(x, packed, bias, "none", [], "")
        return product

    return apply


Multiply = Callable[[Matrix, Tensor | None], Linear]
"""Function like `linear`, with about equal results: (weight [out, in], bias or None) → product."""


def int8_linear(weight: Matrix, bias: Tensor | None = None) -> Linear:
    """`linear` on a CPU, with an 8-bit weight: see `pack_int8`."""
    assert isinstance(weight, Tensor), "CPUs dequantise while loading"
    matrix = pack_int8(weight)

    def apply(x: Tensor) -> Tensor:
        product = native.int8_product(x.contiguous(), matrix)
        return product if bias is None else product.add_(bias)

    return apply


def pack_int8(weight: Tensor) -> native.Int8Matrix:
    """Packs `weight` [out, in] as 8-bit numbers: the nearest of 255 values, equally spaced for each
    output."""
    wide = weight.float()
    largest = wide.abs().amax(1) if weight.shape[1] else wide.new_zeros(len(wide))
    scales = largest / 127
    values = (wide / scales.where(scales > 0, 1)[:, None]).round_().to(torch.int8)
    return native.pack_int8(values, scales)


def pack(weight: Tensor) -> Tensor:
    """Packs `weight` in oneDNN's order if that pays, else returns it unchanged. oneDNN takes no
    empty weights."""
    if weight.device.type == "cpu" and weight.numel() > 0 and _onednn_packs(weight.dtype):
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        return packed
    return weight


def _onednn_packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies `dtype` on this processor.

    bfloat16 needs AVX-512 or AVX-NE-CONVERT, float16 AVX-512 FP16 or AVX-NE-CONVERT. Without them
    torch computes the product itself, and reordering a weight raises.
    """
    if not torch._C._has_mkldnn:
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


Activation = Callable[[Tensor], Tensor]
"""[n, 2 x width], gate first → [n, width]."""


def silu_and_multiply(gate_up: Tensor) -> Tensor:
    """silu(gate) x up: [n, 2 x width], gate first → [n, width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_and_multiply(gate_up: Tensor) -> Tensor:
    """gelu(gate) x up, with gelu's tanh approximation."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


@dataclass(frozen=True)
class ClampedSwiglu:
    """gate x sigmoid(alpha x gate) x (up + 1), with gate at most `limit`, and up from -`limit` to
    `limit`."""

    alpha: float
    limit: float

    def __call__(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(max=self.limit)
        product = (gate * self.alpha).sigmoid_().mul_(gate)
        del gate
        return product.mul_(up.clamp(-self.limit, self.limit).add_(1))
