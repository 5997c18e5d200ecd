"""Packed matrices mean what their numbers mean one by one, also when they are joined or cut."""

from __future__ import annotations

import pytest
import torch
from sluice_kernels.packed import E2M1, Kind, PackedMatrix, dequantised, joined

from tests.kernels.packed_matrices import packed_matrix

WIDTH = 96


def number_of(matrix: PackedMatrix, out: int, at: int) -> float:
    """The number of an output and an input, as the layout is described."""
    assert matrix.scales is not None
    group = at // (WIDTH // matrix.scales.shape[1])
    scale = matrix.scales[out, group].item()
    if matrix.kind is Kind.FP8:
        return matrix.numbers[out, at : at + 1].view(torch.float8_e4m3fn).item() * scale
    byte = int(matrix.numbers[out, at // 32 * 16 + at % 16])
    bits = byte >> 4 if at % 32 >= 16 else byte & 15
    if matrix.kind is Kind.MXFP4:
        return float(E2M1[bits] * 2.0 ** (int(scale) - 127))
    assert matrix.zeros is not None
    return (bits - int(matrix.zeros[out, group])) * scale


@pytest.mark.parametrize("group", [32, 96])
@pytest.mark.parametrize("kind", [Kind.FP8, Kind.INT4, Kind.MXFP4])
def test_each_number_is_what_its_bits_and_its_group_say(kind: Kind, group: int) -> None:
    torch.manual_seed(1)
    matrix = packed_matrix(kind, 3, WIDTH, group=group)
    assert (matrix.shape, matrix.group) == ((3, WIDTH), group)
    wanted = [[number_of(matrix, out, at) for at in range(WIDTH)] for out in range(3)]
    assert torch.equal(dequantised(matrix), torch.tensor(wanted))


@pytest.mark.parametrize("kind", Kind)
def test_joined_and_cut_by_outputs(kind: Kind) -> None:
    torch.manual_seed(1)
    first, second = packed_matrix(kind, 4, 64), packed_matrix(kind, 2, 64)
    both = joined([first, second])
    numbers = torch.cat((dequantised(first), dequantised(second)))
    assert torch.equal(dequantised(both), numbers)
    assert torch.equal(dequantised(both[1::2]), numbers[1::2])
    experts = both.view(3, 2)
    assert experts.shape == (3, 2, 64)
    assert torch.equal(dequantised(experts[1]), numbers[2:4])
