"""Blocks of host memory through which pages are read, and through which pages in device memory are
checked.

Knows no device; a `StagingMemory` makes the copies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import xxhash

from sluice_runtime.handover.transfer.backend import MemoryPiece, total_bytes
from sluice_runtime.handover.transfer.reads import StagingLostError
from sluice_runtime.handover.transfer.registered import checksum, memory_at

if TYPE_CHECKING:
    from sluice_runtime.kv.host_blocks import BlockCounts


class StagingMemory(Protocol):
    """The part of `kv.host_blocks.HostBlocks` that is used."""

    counts: BlockCounts
    block_pages: int
    block_bytes: int

    def address_of(self, block: int) -> int: ...
    def to_host(
        self, block: int, ranges: Sequence[tuple[int, int]], parts: int | None = None
    ) -> None: ...
    def to_device(
        self, block: int, ranges: Sequence[tuple[int, int]], parts: int | None = None
    ) -> None: ...


class Blocks:
    """Blocks of a staging memory, of which some are free."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._count = len(numbers)
        self._lock = threading.Lock()
        self._free = list(numbers)

    def take(self) -> int:
        """Takes a free block. Each reading thread finds one unless blocks were lost.

        Raises:
            StagingLostError: all blocks are lost.
        """
        with self._lock:
            if not self._free:
                raise StagingLostError(
                    f"all {self._count} blocks of staging memory may still be written by reads "
                    "that timed out"
                )
            return self._free.pop()

    def give_back(self, block: int) -> None:
        with self._lock:
            self._free.append(block)


class DeviceChecksum:
    """Computes checksums of pages in device memory, by copies in a private block. Pages in host
    memory are copied too if the checksum needs another engine's order of heads."""

    def __init__(self, memory: StagingMemory, pool_address: int, *, in_place: bool = False) -> None:
        """`memory`: has a private block for each calling thread. `in_place`: whether the pool is in
        host memory, so that bytes in its own order are not copied."""
        self._memory = memory
        self._in_place = in_place
        shared, private = memory.counts
        self._blocks = Blocks(range(shared, shared + private))
        self._pool_address = pool_address

    def __call__(
        self, ranges: Iterable[tuple[int, int]], room: int, parts: int | None = None
    ) -> int:
        """Checksum of `ranges`. `parts`: ranks of the engine in whose order the bytes are checked;
        None: our own order."""
        if self._in_place and parts is None:
            return checksum(ranges, room)
        memory, digest = self._memory, xxhash.xxh3_64(seed=room)
        pieces = [MemoryPiece(0, address, length) for address, length in ranges]
        block = self._blocks.take()
        try:
            for part in in_blocks(pieces, memory.block_bytes):
                memory.to_host(block, pool_ranges(part, self._pool_address), parts)
                digest.update(memory_at(memory.address_of(block), total_bytes(part)))
        finally:
            self._blocks.give_back(block)
        return digest.intdigest()


def in_blocks(pieces: Sequence[MemoryPiece], block_bytes: int) -> Iterator[list[MemoryPiece]]:
    """Groups of pieces of at most `block_bytes` each, in order; long pieces are divided."""
    part, room_bytes = list[MemoryPiece](), block_bytes
    for remote, local, length in pieces:
        done = 0
        while done < length:
            step = min(room_bytes, length - done)
            part.append(MemoryPiece(remote + done, local + done, step))
            done += step
            room_bytes -= step
            if not room_bytes:
                yield part
                part, room_bytes = [], block_bytes
    if part:
        yield part


def pool_ranges(pieces: Sequence[MemoryPiece], pool_address: int) -> list[tuple[int, int]]:
    """(first byte in the pool, length) of pieces of our pages."""
    return [(local - pool_address, length) for _, local, length in pieces]
