"""Pages of a GPU's pool leave through pinned memory before a step writes to them, and come back
from memory and disk beside the steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sluice_runtime.engine.host_cache import HostCache
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.scheduler.batch import Batch, ForwardMode, HostCopied, HostCopies
from sluice_runtime.scheduler.settings import HostPages

pytestmark = pytest.mark.gpu

PAGES = 64


def run(cache: HostCache, step: int, copies: HostCopies) -> list[HostCopied]:
    cache.begin(Batch(step, ForwardMode.IDLE, host_copies=copies))
    ended: list[HostCopied] = []
    while not ended or cache._jobs:
        ended += cache.ended(1.0)
    return ended


def test_pages_come_back_as_they_left_while_the_gpu_computes(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    pool = PagePool(KvShape(8, 4, 64, torch.bfloat16), PAGES, 16, device)
    pool.data.copy_(torch.randn(pool.data.shape))
    torch.cuda.synchronize()
    before = pool.data.clone()
    cache = HostCache(pool, HostPages(PAGES, PAGES), str(tmp_path))
    busy = torch.randn(2048, 2048, device=device)
    for _ in range(6):
        busy = busy @ busy.T / 2048
    saved = tuple((page, PAGES - 1 - page) for page in range(PAGES))
    cache.begin(Batch(1, ForwardMode.IDLE, host_copies=HostCopies(saved=saved)))
    pool.data.zero_()  # as the step does, on the same stream: after the copies
    torch.cuda.synchronize()
    spilled = tuple((slot, PAGES + slot) for slot in range(0, PAGES, 2))
    run(cache, 2, HostCopies(spilled=spilled))
    back = [(slot, PAGES - 1 - slot) for slot in range(1, PAGES, 2)]
    back += [(PAGES + slot, PAGES - 1 - slot) for slot in range(0, PAGES, 2)]
    (loaded,) = run(cache, 3, HostCopies(loaded=tuple(back)))
    assert loaded.bad_slots == ()
    assert torch.equal(pool.data[:PAGES], before[:PAGES])
    cache.close()
