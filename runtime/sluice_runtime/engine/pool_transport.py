"""Transport of pages between this engine's pool and other engines.

An authenticated transfer backend reads a pool in host memory directly. RDMA reads a pool in device
memory directly if the network adapter can. Otherwise all pages go through blocks of host memory,
and no other engine reaches the pool. Pages of engines with another number of ranks always go
through blocks, where they are split by heads. For a pool in host memory, blocks take no memory
until the first such page comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from sluice_runtime.handover.page_reads import LocalPages
from sluice_runtime.handover.ports import PagePublisher, PeerMemory
from sluice_runtime.handover.publishing import HostPublisher
from sluice_runtime.handover.staged_publisher import StagedPublisher, Staging, runs
from sluice_runtime.handover.transfer.backend import TransferBackend, TransferError
from sluice_runtime.handover.transfer.landing import (
    DirectLanding,
    Landing,
    LandingByParts,
    StagedLanding,
)
from sluice_runtime.handover.transfer.reader import WORKERS
from sluice_runtime.handover.transfer.registered import checksum_of_pages
from sluice_runtime.handover.transfer.staging import DeviceChecksum
from sluice_runtime.kv.host_blocks import BlockCounts, HostBlocks
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.parallel.page_copies import RankBlocks
from sluice_runtime.parallel.processes import Socket

PREFILL_BLOCKS: Final = BlockCounts(shared=16, private=1)
"""Blocks of a prefill engine: 1 GiB shared, for pages that are copied and not read yet, and one
private block for the publisher's checksums."""
DECODE_BLOCKS: Final = BlockCounts(shared=2 * WORKERS, private=WORKERS)
"""Blocks of a decode engine: a shared block for each thread, as many again to replace those lost to
late reads, and a private block for each thread's checksums."""

_log = logging.getLogger("sluice.handover")
Wake = Callable[[], None]
Staged = HostBlocks | RankBlocks


class PoolTransport(Protocol):
    """Moves one engine's pages to or from other engines. Either `publisher` or `landing` is called,
    once."""

    @property
    def local(self) -> LocalPages:
        """Addresses of our pages, as `landing` uses them."""
        ...

    @property
    def memory(self) -> PeerMemory:
        """Memory that other engines read."""
        ...

    def publisher(self, page_tokens: int, wake: Wake) -> PagePublisher:
        """Publisher of our pages; the caller closes it."""
        ...

    def landing(self) -> Landing: ...


class HostTransport:
    """Transport for a pool in host memory that the backend reads directly. Raises TransferError if
    the pool cannot be registered."""

    def __init__(self, pool: PagePool, backend: TransferBackend, counts: BlockCounts) -> None:
        backend.register(pool.address, pool.pages * pool.page_bytes)
        self._pool, self._backend, self._counts = pool, backend, counts
        self._checksum = partial(checksum_of_pages, pool.address, pool.page_bytes)
        self.local = LocalPages(pool.address, pool.page_bytes, kv_heads=pool.shape.kv_heads)
        self.memory = PeerMemory(backend.session, pool.address, pool.page_bytes, pool.pages)

    def publisher(self, page_tokens: int, wake: Wake) -> HostPublisher:
        return HostPublisher(self._checksum)

    def landing(self) -> Landing:
        blocks, address = HostBlocks(self._pool, self._counts), self._pool.address
        self._backend.register(blocks.address, blocks.shared_bytes)
        checksum_of = DeviceChecksum(blocks, address, in_place=True)
        divided = StagedLanding(self._backend, blocks, address, checksum_of)
        return LandingByParts(DirectLanding(self._backend), divided)


@dataclass(frozen=True)
class BlockTransport:
    """Transport for a pool in device memory, or for a pool that no other engine may reach.
    `checksum`: computes checksums of pages in place. `direct`: whether the pool is registered with
    the backend; otherwise the shared blocks are."""

    local: LocalPages
    pages: int
    backend: TransferBackend
    blocks: Staged
    checksum: DeviceChecksum
    direct: bool

    @property
    def memory(self) -> PeerMemory:
        size, session = self.local.page_bytes, self.backend.session
        if self.direct:
            return PeerMemory(session, self.local.address, size, self.pages)
        copies, parts = self.blocks.counts.shared * self.blocks.block_pages, self.local.parts
        return PeerMemory(session, self.blocks.address, size, copies, staged=True, parts=parts)

    def publisher(self, page_tokens: int, wake: Wake) -> StagedPublisher:
        size = self.local.page_bytes
        staging = Staging(
            self.blocks, size, page_tokens, self._checksum_of_pages, copies=not self.direct
        )
        return StagedPublisher(staging, wake)

    def landing(self) -> Landing:
        address = self.local.address
        through_blocks = StagedLanding(self.backend, self.blocks, address, self.checksum)
        if not self.direct:
            return through_blocks
        self.backend.register(self.blocks.address, self.blocks.shared_bytes)
        return LandingByParts(DirectLanding(self.backend, self.checksum), through_blocks)

    def _checksum_of_pages(self, page_ids: Sequence[int], room: int) -> int:
        ranges = runs(page_ids, self.local.page_bytes)
        return self.checksum(((self.local.address + at, length) for at, length in ranges), room)


def transport_of(
    pool: PagePool,
    backend: TransferBackend,
    counts: BlockCounts,
    copiers: Sequence[Socket] = (),
    copies: int = 1,
) -> PoolTransport:
    """Transport for the pool and the backend. `copiers`: sockets to this engine's other ranks,
    which hold their heads of every page; `copies`: ranks that hold each head.

    Raises:
        TransferError: neither the pool nor host blocks can be registered.
    """
    if copiers:
        return staged(pool, backend, RankBlocks(pool, counts, copiers, copies=copies))
    if pool.data.device.type == "cpu":
        if backend.is_authenticated:
            return HostTransport(pool, backend, counts)
        return staged(pool, backend, HostBlocks(pool, counts), in_place=True)
    blocks = HostBlocks(pool, counts)
    if backend.reaches_devices and _registered(pool, backend):
        _log.info("KV transfer: the adapter reads and writes the GPU's memory")
        local = LocalPages(pool.address, pool.page_bytes, kv_heads=pool.shape.kv_heads)
        of_device = DeviceChecksum(blocks, pool.address)
        return BlockTransport(local, pool.pages, backend, blocks, of_device, direct=True)
    return staged(pool, backend, blocks)


def staged(
    pool: PagePool, backend: TransferBackend, blocks: Staged, *, in_place: bool = False
) -> BlockTransport:
    """Transport through `blocks` alone; no other engine reaches the pool. `in_place`: the pool is
    in host memory and checked in place, as is any pool without private blocks."""
    backend.register(blocks.address, blocks.shared_bytes)
    _log.info(
        "KV transfer: through %d blocks of %d MiB of host memory",
        blocks.counts.shared,
        blocks.block_bytes >> 20,
    )
    heads = blocks.parts * pool.shape.kv_heads
    local = LocalPages(pool.address, blocks.page_bytes, blocks.parts, heads)
    in_place = in_place or not blocks.counts.private
    checksum_of = DeviceChecksum(blocks, pool.address, in_place=in_place)
    return BlockTransport(local, pool.pages, backend, blocks, checksum_of, direct=False)


def _registered(pool: PagePool, backend: TransferBackend) -> bool:
    try:
        backend.register(pool.address, pool.pages * pool.page_bytes)
    except TransferError as error:
        _log.warning(
            "KV transfer: the adapter cannot reach the GPU's memory (%s; GPUDirect RDMA needs "
            "nvidia-peermem or DMA-BUF): pages go through host memory",
            error,
        )
        return False
    return True
