"""The workspace holds what flashinfer's planners ask for, and is not asked for in vain."""

from __future__ import annotations

import pytest
from sluice_runtime.layers.flashinfer_workspace import (
    HeadShape,
    graph_workspace_bytes,
    step_workspace_bytes,
)

LLAMA_8B = HeadShape(32, 8, 128)
QWEN_32B = HeadShape(64, 8, 128)
QWEN_SMALL = HeadShape(16, 8, 128)
SHAPES = (LLAMA_8B, QWEN_32B, QWEN_SMALL, HeadShape(8, 1, 128), HeadShape(32, 32, 64))
MIB = 1 << 20


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("multiprocessors", [40, 108, 132, 148])
def test_steps_have_room_for_as_many_partial_results_as_blocks_run(
    shape: HeadShape, multiprocessors: int
) -> None:
    """`PrefillPlan`: [heads, blocks, tile, head_dim] values and [heads, blocks, tile] weights."""
    blocks = 2 * multiprocessors // shape.kv_heads
    values = shape.heads * blocks * 128 * shape.head_dim * 4
    weights = shape.heads * blocks * 128 * 4
    size = step_workspace_bytes(shape, multiprocessors)
    assert values + weights + 32 <= size < values + weights + 2 * MIB


@pytest.mark.parametrize(
    ("shape", "batch", "major", "tiles", "tile"),
    [
        (LLAMA_8B, 256, 9, 64 + 255, 16),
        (LLAMA_8B, 1, 9, 33, 16),
        (QWEN_32B, 512, 9, 256 + 511, 16),
        (LLAMA_8B, 8, 7, 33, 64),
        (HeadShape(20, 1, 128), 16, 9, 264, 64),
    ],
)
def test_graphs_have_room_for_every_tile_of_their_largest_batch(
    shape: HeadShape, batch: int, major: int, tiles: int, tile: int
) -> None:
    """`PrefillPlan` with graphs: no fewer blocks than tiles, and none than run at once."""
    wanted = shape.heads * tiles * tile * (shape.head_dim + 1) * 4
    assert wanted + 32 <= graph_workspace_bytes(shape, 132, batch, major) < wanted + 2 * MIB


def test_small_groups_decode_with_little() -> None:
    assert not QWEN_SMALL.decodes_on_tensor_cores()
    assert graph_workspace_bytes(QWEN_SMALL, 132, 512, 9) < 8 * MIB


def test_layers_with_a_window_or_sinks_decode_in_tiles_whatever_their_groups() -> None:
    assert QWEN_SMALL.decodes_on_tensor_cores(plain=False)
    wanted = 16 * (512 * 2 // 16 + 511) * 16 * (128 + 1) * 4
    size = graph_workspace_bytes(QWEN_SMALL, 132, 512, 9, plain=False)
    assert wanted + 32 <= size < wanted + 2 * MIB
