"""Random packed matrices."""

from __future__ import annotations

import torch
from sluice_kernels.packed import Kind, PackedMatrix, packed_4_bits


def packed_matrix(
    kind: Kind, *shape: int, group: int = 32, dtype: torch.dtype = torch.float32
) -> PackedMatrix:
    """A matrix [..., out, in] of all numbers of the kind; `dtype`: that of plain ones."""
    *outs, width = shape
    if kind is Kind.PLAIN:
        return PackedMatrix(kind, torch.randn(shape).to(dtype))
    groups = (*outs, width // group)
    if kind is Kind.FP8:
        numbers = torch.randint(0, 255, shape, dtype=torch.uint8)
        numbers[numbers == 127] = 0  # with 255 the only ones that are no numbers
        return PackedMatrix(kind, numbers, torch.rand(groups) / 64)
    numbers = packed_4_bits(torch.randint(0, 16, shape, dtype=torch.uint8))
    if kind is Kind.MXFP4:
        return PackedMatrix(kind, numbers, torch.randint(110, 130, groups, dtype=torch.uint8))
    own = torch.randint(0, 17, groups, dtype=torch.uint8)  # GPTQ's first layout has 16, too
    return PackedMatrix(kind, numbers, torch.rand(groups).half() / 4, own)
