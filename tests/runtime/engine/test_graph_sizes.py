"""Which batch sizes are captured, and which of them a step takes."""

from __future__ import annotations

import pytest
from sluice_contract.config.accelerators import TIERS
from sluice_runtime.engine.graph_sizes import batch_for, graph_batches


def test_small_batches_are_close_together_and_large_ones_apart() -> None:
    usual = graph_batches(512)
    assert usual[:7] == (1, 2, 4, 8, 12, 16, 24)
    assert usual[-17:] == (*(256, 272), *range(288, 497, 16), 512)
    assert len(usual) == 52
    assert graph_batches(600)[-4:] == (512, 544, 576, 600)


@pytest.mark.parametrize(
    "largest", [1, 3, *(tier.sizes.cuda_graph_max_batch for tier in TIERS), 4096]
)
def test_every_batch_up_to_the_largest_has_the_next_graph(largest: int) -> None:
    batches = graph_batches(largest)
    assert list(batches) == sorted(set(batches))
    for rows in range(1, largest + 1):
        assert batch_for(rows, batches) == min(size for size in batches if size >= rows)
    assert batch_for(largest + 1, batches) is None
    assert batch_for(0, batches) is None


def test_none_are_captured_where_none_are_wanted() -> None:
    assert graph_batches(0) == ()
    assert batch_for(1, ()) is None
