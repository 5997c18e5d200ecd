"""Products with packed weights: by a Triton kernel on GPUs, by the reference elsewhere.

Knows no format; `sluice_kernels.packed` holds the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from sluice_kernels import packed, reference
from sluice_kernels.packed import Grouping, PackedMatrix, dequantised
from torch import Tensor

from sluice_runtime.layers.attention_choice import BFLOAT16_FROM

Matrix = Tensor | PackedMatrix
"""A weight [out, in]."""
Product = Callable[[Tensor, PackedMatrix, Tensor | None, Grouping | None], Tensor]
"""See `sluice_kernels.reference.packed_product`."""


def can_pack(device: torch.device) -> bool:
    """Whether products with packed weights have a kernel on `device`."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= BFLOAT16_FROM


def product_on(device: torch.device) -> Product:
    """The product with packed weights on `device`."""
    if device.type != "cuda":
        return reference.packed_product
    # Imported only with a GPU, for which it registers operators.
    from sluice_kernels.triton import operators

    return operators.packed_product


def packed_linear(weight: PackedMatrix, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """See `layers.dense.linear`."""
    product = product_on(weight.device)
    return lambda x: product(x, weight, bias, None)


def grouped_linear(
    weights: PackedMatrix, biases: Tensor | None
) -> Callable[[Tensor, Tensor], Tensor]:
    """See `layers.experts.GroupedLinear`; weights [e, out, in], biases [e, out]."""
    product = product_on(weights.device)

    def apply(x: Tensor, counts: Tensor) -> Tensor:
        return product(x, weights, biases, Grouping(counts.to(torch.int32)))

    return apply


def joined(matrices: Sequence[Matrix]) -> Matrix:
    """Matrices stacked by outputs. If only some are packed, the result is not."""
    if len(matrices) == 1:
        return matrices[0]
    own = [matrix for matrix in matrices if isinstance(matrix, PackedMatrix)]
    if len(own) == len(matrices):
        return packed.joined(own)
    dtype = next(matrix.dtype for matrix in matrices if isinstance(matrix, Tensor))
    return torch.cat([as_tensor(matrix, dtype) for matrix in matrices])


def as_tensor(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    """The matrix in `dtype`, which a packed one is dequantised to."""
    return (dequantised(matrix) if isinstance(matrix, PackedMatrix) else matrix).to(dtype)
