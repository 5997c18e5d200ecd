"""How the pages of this engine's pool get to other engines, and theirs into it.

On a host the transfer backend reaches the pool itself. A device's pool is reached by RDMA where the
adapter can read the device's memory; else everything goes through pinned blocks of the host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from sluice_runtime.handover.ports import PagePublisher, PeerMemory
from sluice_runtime.handover.publishing import HostPublisher
from sluice_runtime.handover.staged_publisher import StagedPublisher, Staging
from sluice_runtime.handover.transfer.backend import TransferBackend, TransferError
from sluice_runtime.handover.transfer.checksum import checksum, checksum_of_pages
from sluice_runtime.handover.transfer.landing import DirectLanding, Landing, StagedLanding
from sluice_runtime.handover.transfer.reader import WORKERS
from sluice_runtime.handover.transfer.staging import Blocks, DeviceChecksum
from sluice_runtime.kv.host_blocks import BLOCK_BYTES, HostBlocks
from sluice_runtime.kv.pool import PagePool

PREFILL_BLOCKS: Final = 16
"""1 GiB: as much as is copied and not read yet."""
DECODE_BLOCKS: Final = 2 * WORKERS
"""One for each thread, and as many that late reads may cost."""

_log = logging.getLogger("sluice.handover")
Wake = Callable[[], None]


class PoolTransport(Protocol):
    """One engine uses either `publisher` or `landing`, once."""

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
        self.memory = PeerMemory(backend.session, pool.address, pool.page_bytes, pool.pages)

    def publisher(self, page_tokens: int, wake: Wake) -> HostPublisher:
        return HostPublisher(self._checksum)

    def landing(self) -> Landing:
        return DirectLanding(self._backend)


@dataclass(frozen=True)
class DeviceTransport:
    """For a pool in a device's memory. `direct`: the backend has it registered; else the blocks."""

    pool: PagePool
    backend: TransferBackend
    blocks: HostBlocks
    direct: bool

    @property
    def memory(self) -> PeerMemory:
        pool, session = self.pool, self.backend.session
        if self.direct:
            return PeerMemory(session, pool.address, pool.page_bytes, pool.pages)
        copies = self.blocks.blocks * self.blocks.block_pages
        return PeerMemory(session, self.blocks.address, pool.page_bytes, copies, staged=True)

    def publisher(self, page_tokens: int, wake: Wake) -> StagedPublisher:
        page_bytes = self.pool.page_bytes
        staging = Staging(self.blocks, page_bytes, page_tokens, checksum, keeps=not self.direct)
        return StagedPublisher(staging, wake)

    def landing(self) -> Landing:
        blocks, address = Blocks(self.blocks), self.pool.address
        if self.direct:
            return DirectLanding(self.backend, DeviceChecksum(blocks, address))
        return StagedLanding(self.backend, blocks, address)


def host_or_device(
    pool: PagePool, backend: TransferBackend, protocol: str, blocks: int
) -> PoolTransport:
    """
    Raises:
        TransferError: neither the pool nor blocks of the host can be registered.
    """
    if pool.data.device.type == "cpu":
        return HostTransport(pool, backend)
    staging = HostBlocks(pool, blocks, BLOCK_BYTES)
    if protocol == "rdma" and _registered(pool, backend):
        _log.info("KV transfer: the adapter reads and writes the GPU's memory")
        return DeviceTransport(pool, backend, staging, direct=True)
    return staged(pool, backend, staging)


def staged(pool: PagePool, backend: TransferBackend, blocks: HostBlocks) -> DeviceTransport:
    """Everything goes through `blocks`; nobody else reaches the pool."""
    backend.register(blocks.address, blocks.size_bytes)
    _log.info(
        "KV transfer: through %d blocks of %d MiB of host memory",
        blocks.blocks,
        blocks.block_bytes >> 20,
    )
    return DeviceTransport(pool, backend, blocks, direct=False)


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
