"""How fast pages leave a GPU and arrive, through the pinned blocks of the hand-over, compared with
one copy of as many bytes. Pages of Llama-3-8B's shape: neighbours, scattered ones, and those of an
engine of four ranks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

import torch
from sluice_runtime.handover.staged_publisher import runs
from sluice_runtime.kv.host_blocks import BlockCounts, HostBlocks
from sluice_runtime.kv.pool import KvShape, PagePool

from benchmarks.gpu.engines import told

PAGES, BLOCKS, TIMES = 512, 4, 12


def best_seconds(call: Callable[[], object]) -> float:
    seconds: list[float] = []
    for _ in range(TIMES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> None:
    pool = PagePool(KvShape(32, 8, 128, torch.bfloat16), PAGES, 16, torch.device("cuda", 0))
    blocks = HostBlocks(pool, BlockCounts(BLOCKS))
    count, size = blocks.block_pages, pool.page_bytes
    scattered = random.Random(0).sample(range(PAGES), count)
    plain = torch.empty(count * size, dtype=torch.uint8, device="cuda")
    host = torch.empty(count * size, dtype=torch.uint8, pin_memory=True)
    whole = count * size / 1e9
    near = list(range(count))
    for name, pages, parts in (
        ("neighbours", near, None),
        ("scattered", scattered, None),
        ("divided", scattered, 4),
    ):
        ranges = runs(pages, size)
        out = best_seconds(partial(blocks.to_host, 0, ranges, parts))
        back = best_seconds(partial(blocks.to_device, 0, ranges, parts))
        told(f"copies.{name}.to_host", whole / out, "GB/s", pages=count)
        told(f"copies.{name}.to_device", whole / back, "GB/s", pages=count)
    told("copies.plain.to_host", whole / best_seconds(lambda: host.copy_(plain)), "GB/s")


if __name__ == "__main__":
    main()
