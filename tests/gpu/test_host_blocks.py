"""Pages of a GPU's pool leave and arrive through pinned blocks, beside work on other streams."""

from __future__ import annotations

import random

import pytest
import torch
from sluice_runtime.handover.staged_publisher import runs
from sluice_runtime.kv.host_blocks import BlockCounts, HostBlocks, PoolCopies, RankShare
from sluice_runtime.kv.pool import KvShape, PagePool

pytestmark = pytest.mark.gpu

PAGES = 96


def test_pages_come_back_as_they_left_while_the_gpu_computes() -> None:
    device = torch.device("cuda", 0)
    pool = PagePool(KvShape(4, 2, 64, torch.bfloat16), PAGES, 16, device)
    pool.data.copy_(torch.randn(pool.data.shape))
    torch.cuda.synchronize()
    before = pool.data.clone()
    blocks = HostBlocks(pool, BlockCounts(3), 20 * pool.page_bytes)
    draw, size = random.Random(1), pool.page_bytes
    busy = torch.randn(2048, 2048, device=device)
    for turn in range(6):
        pages, others = draw.sample(range(PAGES), 20), draw.sample(range(PAGES), 20)
        busy = busy @ busy.T / 2048
        blocks.to_host(turn % 3, runs(pages, size))
        pool.data[others] = 0
        torch.cuda.synchronize()
        blocks.to_device(turn % 3, runs(pages, size))
        assert torch.equal(pool.data[pages], before[pages])
        pool.data.copy_(before)
        torch.cuda.synchronize()


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("parts", [1, 4, 8])
def test_pages_of_another_number_of_ranks_are_divided_by_heads(parts: int, ranks: int) -> None:
    device, places = torch.device("cuda", 0), [(0, 5), (1, 0), (2, 93)]
    # [page, layer, 2, token, head, dim]
    pages = torch.randn((3, 4, 2, 16, 8, 64), dtype=torch.bfloat16)
    sent = torch.stack(pages.chunk(parts, dim=4), dim=1).view(-1).view(torch.uint8).pin_memory()
    back = torch.zeros_like(sent).pin_memory()
    for rank in range(ranks):
        pool = PagePool(KvShape(4, 8 // ranks, 64, torch.bfloat16), PAGES, 16, device)
        PoolCopies(pool, sent, RankShare(rank, ranks)).copy_heads(places, parts, to_pool=True)
        PoolCopies(pool, back, RankShare(rank, ranks)).copy_heads(places, parts, to_pool=False)
        assert torch.equal(pool.data[[5, 0, 93]].cpu(), pages.chunk(ranks, dim=4)[rank])
    assert torch.equal(back, sent)
