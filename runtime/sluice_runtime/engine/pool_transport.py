"""Transport of pages between this engine's pool and other engines.

On a host a transfer backend that is authenticated reaches the pool itself. A device's pool is
reached by RDMA where the adapter can read the device's memory. Otherwise all pages go through
blocks of host memory, and no other engine reaches the pool. Pages of engines with another number of
ranks always go through blocks, where they are divided by heads. Blocks of a host's pool take no
memory until the first such page comes.
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
"""Blocks of a prefill engine: 1 GiB shared, as much as is copied and not read yet; one private for
the publisher's checksums."""
DECODE_BLOCKS: Final = BlockCounts(shared=2 * WORKERS, private=WORKERS)
"""Blocks of a decode engine: one shared for each thread, and as many that late reads may cost; one
private for each thread's checksums."""

_log = logging.getLogger("sluice.handover")
Wake = Callable[[], None]
Staged = HostBlocks | RankBlocks


class PoolTransport(Protocol):
    """Ways of the pages of one engine, which uses either `publisher` or `landing`, once."""

    @property
    def local(self) -> LocalPages:
        """Addresses at which `landing` takes our pages to be."""
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
    """Transport for a pool in host memory that the backend reaches. Raises TransferError where it
    cannot be registered."""

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
    """Transport for a pool in a device's memory, or one that no other engine may reach. `checksum`:
    of pages in place. `direct`: the backend has the pool registered; otherwise the shared
    blocks."""

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
) -> PoolTransport:
    """Transport that suits the pool and the backend. `copiers`: sockets of the other ranks of this
    engine, which hold their heads of every page.

    Raises:
        TransferError: neither the pool nor blocks of the host can be registered.
    """
    if copiers:
        return staged(pool, backend, RankBlocks(pool, counts, copiers))
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
