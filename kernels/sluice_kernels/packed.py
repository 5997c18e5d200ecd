"""Weight matrices that keep a quantised checkpoint's few bits, in one layout for all formats, and
what their numbers mean.

Each output has its row of numbers, and a scale for each group of inputs. So matrices are joined,
cut and reordered by outputs like tensors. Two numbers of 4 bits share a byte: of each 32 inputs,
the first 16 are in the low bits of 16 bytes, the others in the high bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

import torch
from torch import Tensor

BLOCK: Final = 32
"""Inputs whose numbers of 4 bits are packed together."""
SCALE_OFFSET: Final = 127
_POSITIVE: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1: Final = (*_POSITIVE, *(-number for number in _POSITIVE))
"""Values of the numbers of MXFP4, by their bits."""


class Kind(IntEnum):
    """How a number is stored."""

    PLAIN = 0
    """A float of the activations' type, without a scale."""
    FP8 = 1
    """e4m3."""
    INT4 = 2
    """A whole number from 0 to 15, from which a zero is subtracted."""
    MXFP4 = 3
    """e2m1; the scale is a power of two (e8m0)."""

    @property
    def in_a_byte(self) -> int:
        """Numbers that share an element of `PackedMatrix.numbers`."""
        return 2 if self in (Kind.INT4, Kind.MXFP4) else 1


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix [out, in], or several of equal shapes: [experts, out, in]."""

    kind: Kind
    numbers: Tensor
    """[..., out, in / kind.in_a_byte]: uint8, or floats if the kind is PLAIN."""
    scales: Tensor | None = None
    """[..., out, groups]: uint8 exponents with MXFP4, else float16 or float32; None: PLAIN."""
    zeros: Tensor | None = None
    """[..., out, groups], uint8 from 0 to 16, with INT4; others have none."""

    @property
    def shape(self) -> tuple[int, ...]:
        *others, width = self.numbers.shape
        return *others, width * self.kind.in_a_byte

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.shape[-1] // (1 if self.scales is None else self.scales.shape[-1])

    @property
    def device(self) -> torch.device:
        return self.numbers.device

    def __getitem__(self, index: int | slice | Tensor | tuple[int | slice, ...]) -> Self:
        """The matrix of one expert, or some outputs, by an index of a tensor [..., out]."""
        return self._of([part[index] for part in self.parts])

    def view(self, *shape: int) -> Self:
        """`shape`: that of the result without the last dimension."""
        return self._of([part.view(*shape, part.shape[-1]) for part in self.parts])

    @property
    def parts(self) -> list[Tensor]:
        """Its tensors: numbers, then scales and zeros if there are any."""
        return [part for part in (self.numbers, self.scales, self.zeros) if part is not None]

    def _of(self, parts: Sequence[Tensor]) -> Self:
        return type(self)(self.kind, *parts)


@dataclass(frozen=True)
class Grouping:
    """Experts of a product's rows. Rows are sorted by expert."""

    counts: Tensor
    """Rows of each expert [experts], int32."""
    reads: Tensor | None = None
    """Places [rows], int32; divided by `top` they are the rows of x to read. None: those of x
    in order."""
    writes: Tensor | None = None
    """Rows [rows], int32, of the result to write; None: in order."""
    top: int = 1


def joined(matrices: Sequence[PackedMatrix]) -> PackedMatrix:
    """Matrices of one kind, stacked by outputs."""
    parts = zip(*(matrix.parts for matrix in matrices), strict=True)
    return PackedMatrix(matrices[0].kind, *(torch.cat(part) for part in parts))


def packed_4_bits(numbers: Tensor) -> Tensor:
    """Packs uint8 numbers from 0 to 15: [..., in] → [..., in / 2]."""
    halves = numbers.reshape(*numbers.shape[:-1], -1, 2, BLOCK // 2)
    return (halves[..., 0, :] | halves[..., 1, :] << 4).flatten(-2)


def dequantised(matrix: PackedMatrix) -> Tensor:
    """What the numbers mean, in float32: [..., out, in]."""
    numbers, scales, zeros = matrix.numbers, matrix.scales, matrix.zeros
    if scales is None:
        return numbers.float()
    if matrix.kind is Kind.FP8:
        floats = _by_group(numbers.view(torch.float8_e4m3fn).float(), scales)
        return (floats * scales[..., None]).flatten(-2)
    blocks = numbers.reshape(*numbers.shape[:-1], -1, 1, BLOCK // 2)
    bits = torch.cat((blocks & 15, blocks >> 4), -2).flatten(-3)
    if matrix.kind is Kind.MXFP4:
        return mxfp4_values(bits, scales)
    assert zeros is not None
    whole = _by_group(bits.int(), zeros) - zeros.int()[..., None]
    return (whole * scales.float()[..., None]).flatten(-2)


def mxfp4_values(bits: Tensor, scales: Tensor) -> Tensor:
    """What numbers of 4 bits [..., in] mean with exponents [..., groups], in float32."""
    table = torch.tensor(E2M1, device=bits.device)
    exponents = (scales.int() - SCALE_OFFSET)[..., None]
    return torch.ldexp(table[_by_group(bits.int(), scales)], exponents).flatten(-2)


def _by_group(numbers: Tensor, of_groups: Tensor) -> Tensor:
    """[..., in] → [..., groups, in of a group]."""
    return numbers.reshape(*of_groups.shape, -1)
