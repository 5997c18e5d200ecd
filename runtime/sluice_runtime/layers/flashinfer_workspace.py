"""Size of the float workspace that flashinfer's kernels need, from the shape of the heads.

When a kernel splits a row's keys among several blocks, each block stores a partial result in the
workspace. The formulas are upper bounds of `PrefillPlan` and `DecodePlan` in scheduler.cuh of
flashinfer 0.6.13. Knows no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FLOAT_BYTES: Final = 4
BLOCKS_PER_SM: Final = 2
"""Blocks per multiprocessor of the prefill kernels, which also decode on tensor cores."""
DECODE_BLOCKS_PER_SM: Final = 16
"""Blocks per multiprocessor of the decode kernel: no more blocks of 128 threads fit."""
ALIGNMENT: Final = 1 << 20
TENSOR_CORES_FROM: Final = 4
"""Fewest query heads of a key head for which decode uses tensor cores: a row then fills enough of a
matrix instruction."""
AMPERE: Final = 8
"""Major compute capability from which kernels have tiles of 16 queries."""


@dataclass(frozen=True)
class HeadShape:
    """Heads that one device computes."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads of each key head."""
        return self.heads // self.kv_heads

    def decodes_on_tensor_cores(self, *, plain: bool = True) -> bool:
        """Whether tensor cores decode. They always do in layers with a window or sinks: the kernel
        without them reads a row's whole context (`decode.cuh`), and is not built with sinks."""
        return not plain or self.group >= TENSOR_CORES_FROM


def step_workspace_bytes(shape: HeadShape, multiprocessors: int) -> int:
    """Bytes for steps of any rows, planned one by one."""
    tile = 128 if shape.head_dim < 256 else 64
    blocks = BLOCKS_PER_SM * multiprocessors // shape.kv_heads
    return _rounded(shape.heads * blocks * tile * _partial_bytes(shape))


def graph_workspace_bytes(
    shape: HeadShape, multiprocessors: int, batch: int, major: int, *, plain: bool = True
) -> int:
    """Bytes for graphs of decode steps of up to `batch` rows, whose rows are always split. `major`:
    major compute capability."""
    if not shape.decodes_on_tensor_cores(plain=plain):
        blocks = DECODE_BLOCKS_PER_SM * multiprocessors // shape.kv_heads
        return _rounded(shape.heads * blocks * _partial_bytes(shape))
    tile = 16 if shape.group <= 16 and major >= AMPERE else 64
    tiles = -(-batch * shape.group // tile) + batch - 1
    blocks = max(BLOCKS_PER_SM * multiprocessors // shape.kv_heads, tiles)
    return _rounded(shape.heads * blocks * tile * _partial_bytes(shape))


def _partial_bytes(shape: HeadShape) -> int:
    """Bytes of the partial result of one query and head: a sum of values, and its weight."""
    return (shape.head_dim + 1) * FLOAT_BYTES


def _rounded(size: int) -> int:
    """Size with room for the alignment of its two parts."""
    return (size // ALIGNMENT + 1) * ALIGNMENT
