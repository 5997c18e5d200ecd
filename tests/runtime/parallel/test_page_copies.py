"""Ranks copy their parts of pages into blocks that they share, and out of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import numpy as np
import pytest
import torch
import zmq
from sluice_runtime.handover.transfer.registered import memory_at
from sluice_runtime.kv.host_blocks import BlockCounts, RankShare
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.parallel.page_copies import RankBlocks, copy_pages

PAGES, RANKS = 12, 3
NO_MESSAGE = b"\xc0"
"""Ends a rank's thread."""


@contextmanager
def ranks(
    pools: list[PagePool], blocks: int, block_pages: int, copies: int = 1
) -> Iterator[RankBlocks]:
    """Ranks after the first are threads here."""
    context, size = zmq.Context(), len(pools)
    asking, threads = list[zmq.Socket[bytes]](), list[Thread]()
    for rank, pool in enumerate(pools[1:], 1):
        asked = context.socket(zmq.REP)
        asked.bind(f"inproc://copies-{rank}")
        asking.append(context.socket(zmq.REQ))
        asking[-1].connect(f"inproc://copies-{rank}")
        threads.append(Thread(target=_serve, args=(pool, asked, RankShare(rank, size, copies))))
        threads[-1].start()
    try:
        block_bytes = block_pages * size // copies * pools[0].page_bytes
        yield RankBlocks(pools[0], BlockCounts(blocks), asking, block_bytes, copies)
    finally:
        for socket, thread in zip(asking, threads, strict=True):
            socket.send(NO_MESSAGE)
            thread.join()
        context.destroy(linger=0)


def _serve(pool: PagePool, asked: zmq.Socket[bytes], share: RankShare) -> None:
    with suppress(Exception), asked:
        copy_pages(pool, asked, share)


def pools(seed: int) -> list[PagePool]:
    found = [PagePool(KvShape(2, 1, 8, torch.float32), PAGES, 4) for _ in range(RANKS)]
    for rank, pool in enumerate(found):
        pool.data.normal_(generator=torch.Generator().manual_seed(100 * seed + rank))
    return found


def part(pool: PagePool, page: int) -> bytes:
    return pool.data[page].numpy().tobytes()


def test_a_page_in_a_block_is_the_parts_of_all_ranks() -> None:
    theirs = pools(1)
    with ranks(theirs, blocks=2, block_pages=4) as blocks:
        assert blocks.page_bytes == RANKS * theirs[0].page_bytes
        size = blocks.page_bytes
        blocks.to_host(1, [(7 * size, 2 * size), (2 * size, size)])
        found = bytes(memory_at(blocks.address_of(1), 3 * size))
    assert found == b"".join(part(pool, page) for page in (7, 8, 2) for pool in theirs)


def test_what_a_block_holds_gets_into_the_pools_of_all_ranks_and_nowhere_else() -> None:
    ours, before = pools(2), pools(2)
    draw = np.random.default_rng(3)
    with ranks(ours, blocks=2, block_pages=4) as blocks:
        size = blocks.page_bytes
        sent = draw.bytes(2 * size)
        memory_at(blocks.address_of(1), 2 * size)[:] = sent
        blocks.to_device(1, [(9 * size, size), (0, size)])
        with pytest.raises(AssertionError, match="more than a block"):
            blocks.to_device(0, [(0, 5 * size)])
    own = ours[0].page_bytes
    for rank, pool in enumerate(ours):
        for page in range(PAGES):
            wanted = part(before[rank], page)
            if page in (9, 0):
                at = (0 if page == 9 else size) + rank * own
                wanted = sent[at : at + own]
            assert part(pool, page) == wanted


@pytest.mark.parametrize("parts", [1, 2, 6])
def test_pages_of_another_number_of_ranks_are_divided_among_the_pools_and_back(parts: int) -> None:
    """Two heads a rank, six in all."""
    ours = [PagePool(KvShape(2, 2, 8, torch.float32), PAGES, 4) for _ in range(RANKS)]
    # [page, layer, 2, token, head, dim]
    pages = torch.randn((2, 2, 2, 4, 2 * RANKS, 8), generator=torch.Generator().manual_seed(parts))
    sent = torch.stack(pages.chunk(parts, dim=4), dim=1).numpy().tobytes()
    with ranks(ours, blocks=2, block_pages=4) as blocks:
        size = blocks.page_bytes
        taken = [(9 * size, size), (0, size)]
        memory_at(blocks.address_of(1), 2 * size)[:] = sent
        blocks.to_device(1, taken, parts)
        blocks.to_host(0, taken, parts)
        assert bytes(memory_at(blocks.address_of(0), 2 * size)) == sent
    assert torch.equal(torch.cat([pool.data[[9, 0]] for pool in ours], dim=4), pages)


@pytest.mark.parametrize(("copies", "heads"), [(2, 2), (4, 1)])
@pytest.mark.parametrize("parts", [1, 2])
def test_ranks_with_the_same_head_send_it_once_and_all_get_it(
    copies: int, heads: int, parts: int
) -> None:
    if parts > heads:
        pytest.skip("one head is in one part")
    size = copies * heads
    ours = [PagePool(KvShape(2, 1, 8, torch.float32), PAGES, 4) for _ in range(size)]
    # [page, layer, 2, token, head, dim]
    pages = torch.randn((2, 2, 2, 4, heads, 8), generator=torch.Generator().manual_seed(parts))
    sent = torch.stack(pages.chunk(parts, dim=4), dim=1).numpy().tobytes()
    with ranks(ours, blocks=2, block_pages=4, copies=copies) as blocks:
        assert blocks.parts == heads
        assert blocks.page_bytes == len(sent) // 2
        page = blocks.page_bytes
        taken = [(9 * page, page), (0, page)]
        memory_at(blocks.address_of(1), 2 * page)[:] = sent
        blocks.to_device(1, taken, parts)
        held = [pool.data[[9, 0]].clone() for pool in ours]
        for rank, pool in enumerate(ours):
            if rank % copies:
                pool.data.fill_(-1)  # only the first with a head sends it
        blocks.to_host(0, taken, parts)
        assert bytes(memory_at(blocks.address_of(0), 2 * page)) == sent
    for rank, own in enumerate(held):
        assert torch.equal(own[..., 0, :], pages[..., rank // copies, :])
