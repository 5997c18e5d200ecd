"""Masks forbid the same tokens on every device, of the rows that have one, and no others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sluice_runtime.engine.device import Device, HostDevice
from sluice_runtime.engine.sampling.masks import forbid
from sluice_runtime.grammar.masks import Masks

from tests.pairwise import matrix
from tests.runtime.engine.late_device import LateDevice

ROWS = 5


@pytest.mark.parametrize(
    ("device", "vocabulary", "places"),
    matrix(
        [HostDevice(), LateDevice()],
        [1, 31, 32, 33, 1000],
        [[0], [3, 1], [0, 1, 2, 3, 4]],
        others=pytest.mark.full,
    ),
)
def test_a_token_is_forbidden_where_its_bit_is_0(
    device: Device, vocabulary: int, places: list[int]
) -> None:
    generator = np.random.default_rng(vocabulary)
    size = (len(places), -(-vocabulary // 32))
    words = generator.integers(-(2**31), 2**31, size, dtype=np.int64).astype(np.int32)
    logits = torch.zeros(ROWS, vocabulary)
    forbid(logits, Masks(places, words), device)
    for row in range(ROWS):
        for token in range(vocabulary):
            allowed = row not in places or words[places.index(row)][token // 32] >> token % 32 & 1
            assert bool(logits[row, token].isfinite()) == bool(allowed)
