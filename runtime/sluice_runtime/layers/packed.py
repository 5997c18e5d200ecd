"""Products with packed weights: by a Triton kernel on GPUs, by the reference elsewhere.

Knows no format; `sluice_kernels.packed` holds the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from sluice_kernels import packed, reference
from sluice_kernels.packed import Grouping, PackedMatrix, dequantised
from torch import Tensor

from sluice_runtime.layers.attention_choice import BFLOAT16_FROM

Matrix = Tensor | PackedMatrix
"""A weight [out, in]."""


class Kernels(Protocol):
    """Kernels for packed weights and experts: see `sluice_kernels.reference`."""

    def packed_product(
        self,
        x: Tensor,
        matrix: PackedMatrix,
        bias: Tensor | None = None,
        grouping: Grouping | None = None,
    ) -> Tensor: ...

    def choose_experts(
        self, logits: Tensor, top: int, renormalised: bool
    ) -> tuple[Tensor, Tensor]: ...

    def sort_by_expert(self, chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]: ...

    def clamped_swiglu(self, gate_up: Tensor, alpha: float, limit: float) -> Tensor: ...


def can_pack(device: torch.device) -> bool:
    """Whether products with packed weights have a kernel on `device`."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= BFLOAT16_FROM


def kernels_on(device: torch.device) -> Kernels:
    """The kernels on `device`: on a CPU their references."""
    if device.type == "cpu":
        return reference
    # Imported only with a GPU, for which it registers operators.
    from sluice_kernels.triton import operators

    return operators


def packed_linear(weight: PackedMatrix, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """See `layers.dense.linear`."""
    kernels = kernels_on(weight.device)
    return lambda x: kernels.packed_product(x, weight, bias)


def joined(matrices: Sequence[Matrix]) -> Matrix:
    """Matrices stacked by outputs. If only some are packed, the result is not."""
    if len(matrices) == 1:
        return matrices[0]
    packed_ones = [matrix for matrix in matrices if isinstance(matrix, PackedMatrix)]
    if len(packed_ones) == len(matrices):
        return packed.joined(packed_ones)
    dtype = next(matrix.dtype for matrix in matrices if isinstance(matrix, Tensor))
    return torch.cat([as_tensor(matrix, dtype) for matrix in matrices])


def as_tensor(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    """The matrix in `dtype`, which a packed one is dequantised to."""
    return (dequantised(matrix) if isinstance(matrix, PackedMatrix) else matrix).to(dtype)
