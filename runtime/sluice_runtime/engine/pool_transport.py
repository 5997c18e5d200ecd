"""How the pages of this engine's pool get to other engines, and theirs into it.

On a host the transfer backend reaches the pool itself. A device's pool is reached by RDMA where the
adapter can read the device's memory; else everything goes through pinned blocks of the host.
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
from sluice_runtime.handover.staged_publisher import StagedPublisher, Staging
from sluice_runtime.handover.transfer.backend import TransferBackend, TransferError
from sluice_runtime.handover.transfer.checksum import checksum, checksum_of_pages
from sluice_runtime.handover.transfer.landing import DirectLanding, Landing, StagedLanding
from sluice_runtime.handover.transfer.reader import WORKERS
from sluice_runtime.handover.transfer.staging import Blocks, DeviceChecksum
from sluice_runtime.kv.host_blocks import HostBlocks
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.parallel.page_copies import RankBlocks
from sluice_runtime.parallel.processes import Socket

PREFILL_BLOCKS: Final = 16
"""1 GiB: as much as is copied and not read yet."""
DECODE_BLOCKS: Final = 2 * WORKERS
"""One for each thread, and as many that late reads may cost."""

_log = logging.getLogger("sluice.handover")
Wake = Callable[[], None]
Staged = HostBlocks | RankBlocks


class PoolTransport(Protocol):
    """One engine uses either `publisher` or `landing`, once."""

    @property
    def local(self) -> LocalPages:
        """Where `landing` takes our pages to be."""
        ...

    @property
    def memory(self) -> PeerMemory:
        """What others read."""
        ...

    def publisher(self, page_tokens: int, wake: Wake) -> PagePublisher:
        """Closed by the caller."""
        ...

    def landing(self) -> Landing: ...


class HostTransport:
    """For a pool in host memory. Raises TransferError where it cannot be registered."""

    def __init__(self, pool: PagePool, backend: TransferBackend) -> None:
        backend.register(pool.address, pool.pages * pool.page_bytes)
        self._backend = backend
        self._checksum = partial(checksum_of_pages, pool.address, pool.page_bytes)
        self.local = LocalPages(pool.address, pool.page_bytes)
        self.memory = PeerMemory(backend.session, pool.address, pool.page_bytes, pool.pages)

    def publisher(self, page_tokens: int, wake: Wake) -> HostPublisher:
        return HostPublisher(self._checksum)

    def landing(self) -> Landing:
        return DirectLanding(self._backend)


@dataclass(frozen=True)
class DeviceTransport:
    """For a pool in a device's memory. `direct`: the backend has it registered; else the blocks."""

    local: LocalPages
    pages: int
    backend: TransferBackend
    blocks: Staged
    direct: bool

    @property
    def memory(self) -> PeerMemory:
        size, session = self.local.page_bytes, self.backend.session
        if self.direct:
            return PeerMemory(session, self.local.address, size, self.pages)
        copies = self.blocks.blocks * self.blocks.block_pages
        return PeerMemory(session, self.blocks.address, size, copies, staged=True)

    def publisher(self, page_tokens: int, wake: Wake) -> StagedPublisher:
        size = self.local.page_bytes
        staging = Staging(self.blocks, size, page_tokens, checksum, keeps=not self.direct)
        return StagedPublisher(staging, wake)

    def landing(self) -> Landing:
        blocks, address = Blocks(self.blocks), self.local.address
        if self.direct:
            return DirectLanding(self.backend, DeviceChecksum(blocks, address))
        return StagedLanding(self.backend, blocks, address)


def transport_of(
    pool: PagePool,
    backend: TransferBackend,
    protocol: str,
    blocks: int,
    copiers: Sequence[Socket] = (),
) -> PoolTransport:
    """`copiers`: to the other ranks of this engine, which hold their heads of every page.

    Raises:
        TransferError: neither the pool nor blocks of the host can be registered.
    """
    if copiers:
        return staged(pool, backend, RankBlocks(pool, blocks, copiers))
    if pool.data.device.type == "cpu":
        return HostTransport(pool, backend)
    staging = HostBlocks(pool, blocks)
    if protocol == "rdma" and _registered(pool, backend):
        _log.info("KV transfer: the adapter reads and writes the GPU's memory")
        local = LocalPages(pool.address, pool.page_bytes)
        return DeviceTransport(local, pool.pages, backend, staging, direct=True)
    return staged(pool, backend, staging)


def staged(pool: PagePool, backend: TransferBackend, blocks: Staged) -> DeviceTransport:
    """Everything goes through `blocks`; nobody else reaches the pool."""
    backend.register(blocks.address, blocks.size_bytes)
    _log.info(
        "KV transfer: through %d blocks of %d MiB of host memory",
        blocks.blocks,
        blocks.block_bytes >> 20,
    )
    local = LocalPages(pool.address, blocks.page_bytes)
    return DeviceTransport(local, pool.pages, backend, blocks, direct=False)


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
