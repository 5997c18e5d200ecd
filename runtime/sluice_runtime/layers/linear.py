"""A matrix and its bias, possibly several of a checkpoint joined. Knows no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Linear = Callable[[Tensor], Tensor]
"""[n, in] → [n, out]."""

PACKED_DTYPES: Final = (torch.bfloat16, torch.float16)
"""Types for which oneDNN reorders the weight in every call unless it was done before."""


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """x → x weight^T + bias for weight [out, in] and bias [out]; on a CPU packed once for its
    matrix units."""
    packed = pack(weight)
    if not packed.is_mkldnn:
        return lambda x: F.linear(x, weight, bias)
    multiply = torch.ops.mkldnn._linear_pointwise

    def apply(x: Tensor) -> Tensor:
        product: Tensor = multiply(x, packed, bias, "none", [], "")
        return product

    return apply


def pack(weight: Tensor) -> Tensor:
    """`weight` in oneDNN's order where that pays, else as it is; oneDNN takes no empty ones."""
    can_pack = torch._C._has_mkldnn and weight.device.type == "cpu" and weight.numel() > 0
    if can_pack and weight.dtype in PACKED_DTYPES:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        return packed
    return weight
