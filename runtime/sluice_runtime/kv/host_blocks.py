"""Host memory through which a pool's pages leave and arrive when other engines cannot or should not
reach the pool.

Blocks hold whole pages, and are pinned if the pool is on a GPU, so that copies run at the bus's
speed. Pages of real models have megabytes, so each run of neighbouring pages is one copy and
nothing is packed first. Pages of an engine with another tensor parallel size are split by heads on
their way. In a block such a page has one part for each rank of that engine, `[layer, 2, token,
head, dim]`. So the heads of one of our ranks are strided pieces of one part, or several whole
parts. Ranks that hold copies of the same heads have one part together. Knows neither transfers nor
requests; its users decide who uses which block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.kv.pool import PagePool

BLOCK_BYTES: Final = 64 << 20
"""Size of a block: long enough for the bus, short enough that copying, checking and sending
overlap."""

Range = tuple[int, int]
"""First byte in the pool, and length."""
Move = tuple[int, int, int]
"""First byte in the host's memory, first byte in the pool, length."""


class RankShare(NamedTuple):
    """Part of every page that one rank's pool holds: that rank's heads."""

    rank: int
    ranks: int
    copies: int = 1
    """Number of neighbouring ranks that hold the same heads."""

    @property
    def part(self) -> int:
        return self.rank // self.copies

    @property
    def parts(self) -> int:
        """Number of different parts of a page."""
        return self.ranks // self.copies

    @property
    def is_first(self) -> bool:
        """Whether this is the first rank with its heads."""
        return self.rank % self.copies == 0


WHOLE: Final = RankShare(0, 1)


class HeadRange(NamedTuple):
    """Neighbouring heads that are in one part of a page, and in one rank's pool."""

    part: int
    first: int
    """First of the heads, within the part."""
    own: int
    """First of the heads, within the rank's own heads."""
    heads: int


def head_ranges(heads: int, parts: int, rank: int, ranks: int) -> tuple[HeadRange, ...]:
    """Ranges that hold the heads of `rank` in a page of `parts` parts, in order. `heads`: the
    model's number of heads; `parts` and `ranks`, without ranks that hold copies, divide it."""
    assert heads % parts == heads % ranks == 0, "engines refuse other numbers"
    in_part, own = heads // parts, heads // ranks
    start, end, ranges = rank * own, (rank + 1) * own, list[HeadRange]()
    for part in range(start // in_part, (end - 1) // in_part + 1):
        first, last = max(start, part * in_part), min(end, (part + 1) * in_part)
        ranges.append(HeadRange(part, first - part * in_part, first - start, last - first))
    return tuple(ranges)


class BlockCounts(NamedTuple):
    """Number of blocks of each kind."""

    shared: int
    """Blocks at the start, which the transfer backend reads and fills; other engines may access
    them."""
    private: int = 0
    """Blocks after the shared ones; other engines do not access them."""


class PoolCopies:
    """Copies between a pool and host memory, in parallel to steps; usable from any thread."""

    def __init__(self, pool: PagePool, host: Tensor, share: RankShare = WHOLE) -> None:
        """`host`: [byte]; pinned, or copies from and to a GPU are slow and wait for each other."""
        # [byte]
        self._pool = pool.data.view(-1).view(torch.uint8)
        # [page, layer x 2 x token, head, dim]
        self._heads = pool.data.flatten(1, 3)
        self._host = host
        self._share = share
        # A separate stream, so that copies and steps do not wait for each other.
        self._stream: torch.cuda.Stream | None = None
        if pool.data.device.type == "cuda":
            self._stream = torch.cuda.Stream(pool.data.device)  # type: ignore[no-untyped-call]

    def copy(self, moves: Iterable[Move], *, to_pool: bool) -> None:
        """Copies and waits until all is copied. The copies may miss results of pending device
        work."""
        if (copied := self.start(moves, to_pool=to_pool)) is not None:
            copied.synchronize()

    def start(self, moves: Iterable[Move], *, to_pool: bool) -> torch.cuda.Event | None:
        """Starts copying and returns at once, with an event for its end; None: it has ended
        already."""
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            for at, first, length in moves:
                assert 0 <= first < first + length <= self._pool.numel(), "outside of the pool"
                host, device = self._host[at : at + length], self._pool[first : first + length]
                to, source = (device, host) if to_pool else (host, device)
                if self._stream is not None:
                    to.copy_(source, non_blocking=True)
                else:  # torch's threads would wait for each other after every piece
                    np.copyto(to.numpy(), source.numpy())
        return self._stream.record_event() if self._stream is not None else None

    def copy_heads(self, copies: Iterable[tuple[int, int]], parts: int, *, to_pool: bool) -> None:
        """Copies our heads of whole pages, as `copy` does. copies: (place in host memory, page of
        the pool). In host memory a page has `parts` parts, one for each rank of the engine that
        made it."""
        share, (pages, rows, own, dim) = self._share, self._heads.shape
        heads = own * share.parts
        ranges = head_ranges(heads, parts, share.part, share.parts)
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            # [page, part, layer x 2 x token, head, dim]
            host = self._host.view(self._heads.dtype).view(-1, parts, rows, heads // parts, dim)
            for place, page in copies:
                assert 0 <= page < pages - 1, "outside of the pool"
                for part, first, at, some in ranges:
                    ours, theirs = self._heads[page, :, at : at + some], host[place, part]
                    if to_pool:
                        # The whole part goes to the device first: strided copies over the bus are
                        # slow.
                        there = theirs.to(ours.device, non_blocking=True)
                        ours.copy_(there[:, first : first + some], non_blocking=True)
                    else:
                        theirs[:, first : first + some].copy_(ours)
        if self._stream is not None:
            self._stream.synchronize()


def pages_of(ranges: Sequence[Range], page_bytes: int) -> tuple[int, ...]:
    """Page numbers of ranges that are whole pages."""
    assert all(first % page_bytes == 0 == length % page_bytes for first, length in ranges), (
        "whole pages"
    )
    return tuple(
        page
        for first, length in ranges
        for page in range(first // page_bytes, (first + length) // page_bytes)
    )


class HostBlocks:
    """Blocks of host memory for one pool. Every method may be called from any thread, but only one
    thread at a time may use a block."""

    def __init__(self, pool: PagePool, counts: BlockCounts, block_bytes: int = BLOCK_BYTES) -> None:
        self.counts = counts
        self.parts: Final = 1
        """Number of parts of a page of the pool."""
        self.page_bytes = pool.page_bytes
        self.block_pages = max(1, block_bytes // pool.page_bytes)
        self.block_bytes = self.block_pages * pool.page_bytes
        on_gpu = pool.data.device.type == "cuda"
        size_bytes = sum(counts) * self.block_bytes
        self._host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=on_gpu)
        self._copies = PoolCopies(pool, self._host)

    @property
    def address(self) -> int:
        """Address of block 0; the others follow without a gap."""
        return self._host.data_ptr()

    @property
    def shared_bytes(self) -> int:
        return self.counts.shared * self.block_bytes

    def address_of(self, block: int) -> int:
        return self.address + block * self.block_bytes

    def to_host(self, block: int, ranges: Sequence[Range], parts: int | None = None) -> None:
        """Copies ranges of the pool into a block, one after the other, and waits for that. The
        copies may miss results of pending device work. `parts`: number of parts that the ranges,
        which are whole pages, get in the block; None: they are stored as in the pool."""
        self._copy(block, ranges, parts, to_pool=False)

    def to_device(self, block: int, ranges: Sequence[Range], parts: int | None = None) -> None:
        """Copies the beginning of a block into ranges of the pool, and waits for that."""
        self._copy(block, ranges, parts, to_pool=True)

    def _copy(
        self, block: int, ranges: Sequence[Range], parts: int | None, *, to_pool: bool
    ) -> None:
        if parts is None:
            self._copies.copy(self._moves(block, ranges), to_pool=to_pool)
            return
        pages = pages_of(ranges, self.page_bytes)
        assert len(pages) <= self.block_pages, "more than a block"
        numbered = enumerate(pages, block * self.block_pages)
        self._copies.copy_heads(numbered, parts, to_pool=to_pool)

    def _moves(self, block: int, ranges: Sequence[Range]) -> list[Move]:
        at, moves = block * self.block_bytes, list[Move]()
        for first, length in ranges:
            moves.append((at, first, length))
            at += length
        assert at <= (block + 1) * self.block_bytes, "more than a block"
        return moves
