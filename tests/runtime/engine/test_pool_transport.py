"""Pages of engines with other numbers of ranks get into a pool by every way that there is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest
import torch
from sluice_runtime.engine.pool_transport import (
    BlockTransport,
    PoolTransport,
    staged,
    transport_of,
)
from sluice_runtime.handover.page_reads import LocalPages, PageReads
from sluice_runtime.handover.ports import PageRead, PagesRead, PeerMemory
from sluice_runtime.handover.transfer.memory import MemoryBackend, MemoryNetwork
from sluice_runtime.handover.transfer.reader import PageReader
from sluice_runtime.handover.transfer.registered import checksum_of_pages
from sluice_runtime.handover.transfer.staging import DeviceChecksum
from sluice_runtime.kv.host_blocks import BlockCounts, HostBlocks
from sluice_runtime.kv.pool import KvShape, PagePool
from torch import Tensor

from tests.patience import PATIENCE_SECONDS
from tests.runtime.handover.transfer.memory_block import MemoryBlock
from tests.runtime.parallel.test_page_copies import RANKS, pools, ranks

PAGES, HEADS, ROOM = 9, 4, 77
COUNTS = BlockCounts(shared=2, private=4)
SHAPE = KvShape(2, HEADS, 8, torch.float32)


class Unauthenticated(MemoryBackend):
    is_authenticated = False


def host(pool: PagePool, network: MemoryNetwork) -> PoolTransport:
    return transport_of(pool, MemoryBackend(network), COUNTS)


def hidden_host(pool: PagePool, network: MemoryNetwork) -> PoolTransport:
    return transport_of(pool, Unauthenticated(network), COUNTS)


def device(pool: PagePool, network: MemoryNetwork) -> PoolTransport:
    return staged(pool, MemoryBackend(network), small_blocks(pool))


def direct_device(pool: PagePool, network: MemoryNetwork) -> PoolTransport:
    backend, blocks = MemoryBackend(network), small_blocks(pool)
    backend.register(pool.address, PAGES * pool.page_bytes)
    local = LocalPages(pool.address, pool.page_bytes, kv_heads=HEADS)
    checksum_of = DeviceChecksum(blocks, pool.address)
    return BlockTransport(local, PAGES, backend, blocks, checksum_of, direct=True)


def small_blocks(pool: PagePool) -> HostBlocks:
    return HostBlocks(pool, COUNTS, 2 * pool.page_bytes)


WAYS = [host, hidden_host, device, direct_device]
Way = Callable[[PagePool, MemoryNetwork], PoolTransport]


@dataclass
class Reads:
    """Of pages of a peer whose pool has random numbers, into ours, which has none."""

    way: Way
    parts: int
    pool: PagePool = field(default_factory=lambda: PagePool(SHAPE, PAGES, 4))
    woken: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        network = MemoryNetwork()
        peer, size = MemoryBackend(network), self.pool.page_bytes
        generator = torch.Generator().manual_seed(self.parts)
        # [page, layer, 2, token, head, dim]
        self.theirs: Tensor = torch.randn(self.pool.data.shape, generator=generator)
        self.sent = MemoryBlock(PAGES * size)
        parts = torch.stack(self.theirs[:PAGES].chunk(self.parts, dim=4), dim=1)
        self.sent.fill(parts.numpy().tobytes())
        peer.register(self.sent.address, PAGES * size)
        self.memory = PeerMemory(peer.session, self.sent.address, size, PAGES, parts=self.parts)
        self.transport = self.way(self.pool, network)

    def result(self, pages: list[tuple[int, int]], wrong: int = 0) -> PagesRead:
        """Pages: (theirs, ours)."""
        theirs, ours = zip(*pages, strict=True)
        size = self.pool.page_bytes
        announced = checksum_of_pages(self.sent.address, size, theirs, ROOM) ^ wrong
        with closing(PageReader(self.transport.landing(), self.woken.set)) as reader:
            reads = PageReads(reader, self.transport.local, PATIENCE_SECONDS, self.woken.set)
            reads.submit(PageRead(5, ROOM, self.memory, theirs, ours, announced))
            assert self.woken.wait(PATIENCE_SECONDS)
            (result,) = reads.finished()
        return result


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_every_head_is_in_its_place(way: Way, parts: int) -> None:
    reads = Reads(way, parts)
    pages = [(3, 0), (4, 1), (0, 8), (8, 2), (1, 5)]
    assert reads.result(pages) == PagesRead(5)
    for theirs, ours in pages:
        assert torch.equal(reads.pool.data[ours], reads.theirs[theirs])
    assert not bool(reads.pool.data[[3, 4, 6, 7]].any())


@pytest.mark.parametrize("parts", [1, 2])
def test_other_bytes_than_announced_are_refused(way: Way, parts: int) -> None:
    error = Reads(way, parts).result([(3, 0), (5, 6), (1, 2)], wrong=1).error
    assert error is not None
    assert error.startswith("checksum of")


@pytest.mark.parametrize("parts", [0, 3, 8])
def test_parts_that_divide_heads_are_refused(way: Way, parts: int) -> None:
    reads = Reads(way, 1)
    reads.memory = replace(reads.memory, parts=parts)
    allowed = "allowed: a divisor of the model's 4 key heads"
    assert reads.result([(0, 0)]).error == f"parts of a page: {parts} is not allowed; {allowed}"


def test_others_are_told_of_how_many_ranks_the_pages_are() -> None:
    of_each = pools(1)
    with ranks(of_each, blocks=2, block_pages=4) as blocks:
        transport = staged(of_each[0], MemoryBackend(MemoryNetwork()), blocks)
    assert transport.memory.parts == transport.local.parts == RANKS
    assert transport.local.kv_heads == RANKS * of_each[0].shape.kv_heads
