"""A Triton program that stores what `kernels.uniform_at` computes. Imports Triton at once."""

from __future__ import annotations

import triton
import triton.language as tl
from sluice_kernels.triton.kernels import uniform_at


@triton.jit
def uniform_numbers(seeds, positions, uniforms):  # type: ignore[no-untyped-def]
    """Program for one pair of seed and position."""
    at = tl.program_id(0)
    tl.store(uniforms + at, uniform_at(tl.load(seeds + at), tl.load(positions + at)))
