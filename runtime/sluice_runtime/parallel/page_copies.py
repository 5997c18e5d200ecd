"""Copies pages of an engine with several ranks to and from blocks of host memory that all ranks
share.

Each rank's pool holds its heads of every page. In a block a page is rank 0's part, followed by rank
1's, and so on; each rank copies its part when rank 0 requests it. So rank 0 hands pages over as if
there were one pool with all parts. If pages come from an engine with another number of ranks, each
rank picks its heads out of the parts. If several ranks hold copies of a head, a page has it once:
the first of them copies it into a block, and all of them out of it. Knows neither transfers nor
requests.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
import zmq
from torch import Tensor

from sluice_runtime.kv.host_blocks import (
    BLOCK_BYTES,
    BlockCounts,
    Move,
    PoolCopies,
    Range,
    RankShare,
    pages_of,
)
from sluice_runtime.kv.pool import PagePool

Socket = zmq.Socket[bytes]


class SharedBlocks(msgspec.Struct, frozen=True, tag=True):
    """First message from rank 0: the shared memory of the blocks."""

    path: str
    size_bytes: int


class CopyPages(msgspec.Struct, frozen=True, tag=True):
    """Request from rank 0 to copy a rank's part of pages; in the blocks the pages are consecutive.
    The rank replies with an empty message when it is done."""

    first: int
    """Number, in the blocks, of the first page."""
    page_ids: tuple[int, ...]
    to_pool: bool
    """Whether to copy to the pool; otherwise from it."""
    parts: int
    """Parts of each page in the blocks: the ranks of the engine that computed it, those with copies
    not counted."""


class RankBlocks:
    """Rank 0's view of the blocks: like `HostBlocks`, but its pages have the parts of all ranks.
    Every method may be called from any thread."""

    def __init__(
        self,
        pool: PagePool,
        counts: BlockCounts,
        others: Sequence[Socket],
        block_bytes: int = BLOCK_BYTES,
        copies: int = 1,
    ) -> None:
        """`others`: a REQ socket to each of the other ranks, in order; used by this object alone.
        `copies`: ranks that hold each key head."""
        share = RankShare(0, len(others) + 1, copies)
        self.parts = share.parts
        self.page_bytes = share.parts * pool.page_bytes
        self.counts = counts
        self.block_pages = max(1, block_bytes // self.page_bytes)
        self.block_bytes = self.block_pages * self.page_bytes
        size_bytes = sum(counts) * self.block_bytes
        self._memory = os.memfd_create("sluice-handover")
        os.ftruncate(self._memory, size_bytes)
        shared = SharedBlocks(f"/proc/{os.getpid()}/fd/{self._memory}", size_bytes)
        self._part = _Part(pool, shared, share)
        self._others = others
        self._lock = threading.Lock()
        """Lock around the sockets: one copy at a time."""
        self._encoder = msgspec.msgpack.Encoder()
        self._send(shared)
        self._await_replies()

    @property
    def address(self) -> int:
        """Address of block 0; the others follow without a gap."""
        return self._part.host.data_ptr()

    @property
    def shared_bytes(self) -> int:
        return self.counts.shared * self.block_bytes

    def address_of(self, block: int) -> int:
        return self.address + block * self.block_bytes

    def to_host(self, block: int, ranges: Sequence[Range], parts: int | None = None) -> None:
        """Copies whole pages into a block: see `HostBlocks`."""
        self._copy(block, ranges, parts, to_pool=False)

    def to_device(self, block: int, ranges: Sequence[Range], parts: int | None = None) -> None:
        """Copies a block into whole pages: see `HostBlocks`."""
        self._copy(block, ranges, parts, to_pool=True)

    def _copy(
        self, block: int, ranges: Sequence[Range], parts: int | None, *, to_pool: bool
    ) -> None:
        pages = pages_of(ranges, self.page_bytes)
        assert len(pages) <= self.block_pages, "more than a block"
        request = CopyPages(block * self.block_pages, pages, to_pool, parts or self.parts)
        with self._lock:
            self._send(request)
            self._part.copy(request)
            self._await_replies()

    def _send(self, message: SharedBlocks | CopyPages) -> None:
        for other in self._others:
            other.send(self._encoder.encode(message))

    def _await_replies(self) -> None:
        """Waits for all replies. If a rank cannot reply, its process ends, and this one with it."""
        for other in self._others:
            other.recv()


class _Part:
    """One rank's part of all pages in the blocks."""

    def __init__(self, pool: PagePool, shared: SharedBlocks, share: RankShare) -> None:
        self.host = _mapped(shared)
        if pool.data.device.type == "cuda":
            _pin(self.host)
        self._copies = PoolCopies(pool, self.host, share)
        self._page_bytes = pool.page_bytes
        self._share = share

    def copy(self, request: CopyPages) -> None:
        size, share = self._page_bytes, self._share
        if not request.to_pool and not share.is_first:
            return
        pages = enumerate(request.page_ids, request.first)
        if request.parts != share.parts:
            self._copies.copy_heads(pages, request.parts, to_pool=request.to_pool)
            return
        moves: list[Move] = [
            ((number * share.parts + share.part) * size, page * size, size)
            for number, page in pages
        ]
        self._copies.copy(moves, to_pool=request.to_pool)


def copy_pages(pool: PagePool, requests: Socket, share: RankShare) -> None:
    """Serves rank 0's copy requests, in the process of another rank; does not return."""
    decoder = msgspec.msgpack.Decoder(SharedBlocks | CopyPages)
    shared = decoder.decode(requests.recv())
    assert isinstance(shared, SharedBlocks), "copies begin with the memory"
    part = _Part(pool, shared, share)
    requests.send(b"")
    while isinstance(request := decoder.decode(requests.recv()), CopyPages):
        part.copy(request)
        requests.send(b"")


def _mapped(shared: SharedBlocks) -> Tensor:
    """Shared memory of the blocks: [byte]."""
    with Path(shared.path).open("r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), shared.size_bytes), dtype=torch.uint8)


def _pin(host: Tensor) -> None:
    """Pins memory until the process ends."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(runtime.cudaHostRegister(host.data_ptr(), host.numel(), 0))
