"""Bytes get into pages of a device through blocks of host memory, and are right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from sluice_runtime.handover.transfer.backend import (
    MemoryPiece,
    TransferError,
    TransferTimeoutError,
)
from sluice_runtime.handover.transfer.landing import DirectLanding, StagedLanding
from sluice_runtime.handover.transfer.memory import MemoryBackend, MemoryNetwork
from sluice_runtime.handover.transfer.reads import (
    ChecksumMismatchError,
    ReadJob,
    StagingLostError,
)
from sluice_runtime.handover.transfer.registered import checksum, memory_at
from sluice_runtime.handover.transfer.staging import DeviceChecksum, in_blocks
from sluice_runtime.kv.host_blocks import BlockCounts, HostBlocks
from sluice_runtime.kv.pool import KvShape, PagePool

from tests.runtime.handover.transfer.memory_block import MemoryBlock, contents

PAGES = 32
ROOM = 9


class Told(MemoryBackend):
    """Calls `before` first in each read, and knows what it was asked for."""

    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__(network)
        self.before: Callable[[], None] = lambda: None
        self.asked: list[list[MemoryPiece]] = []
        self.interrupted: list[Sequence[MemoryPiece]] = []

    def read(self, session: str, pieces: Sequence[MemoryPiece], timeout_seconds: float) -> None:
        self.asked.append(list(pieces))
        self.before()
        super().read(session, pieces, timeout_seconds)

    def interrupt(self, pieces: Sequence[MemoryPiece]) -> None:
        self.interrupted.append(pieces)


class Ends:
    """A peer's memory, and a pool that counts as a device's."""

    def __init__(
        self,
        blocks: int = 2,
        block_pages: int = 3,
        private_blocks: int = 1,
        memory: type[HostBlocks] = HostBlocks,
    ) -> None:
        self.pool = PagePool(KvShape(1, 2, 8, torch.float32), PAGES, 4)
        self.size = self.pool.page_bytes
        self.theirs = MemoryBlock(PAGES * self.size)
        self.contents = contents(1, PAGES * self.size)
        self.theirs.fill(self.contents)
        network = MemoryNetwork()
        peer, self.backend = MemoryBackend(network), Told(network)
        self.session = peer.session
        peer.register(self.theirs.address, PAGES * self.size)
        counts = BlockCounts(blocks, private_blocks)
        self.memory = memory(self.pool, counts, block_pages * self.size)
        self.backend.register(self.memory.address, self.memory.shared_bytes)
        self.checksum = DeviceChecksum(self.memory, self.pool.address, in_place=not private_blocks)
        self.landing = StagedLanding(self.backend, self.memory, self.pool.address, self.checksum)

    def job(
        self, pages: Sequence[tuple[int, int]], wrong: int = 0, parts: int | None = None
    ) -> ReadJob:
        """Pages: (theirs, ours)."""
        pieces = tuple(
            MemoryPiece(
                self.theirs.address + there * self.size,
                self.pool.address + here * self.size,
                self.size,
            )
            for there, here in pages
        )
        ranges = [(piece.remote_address, piece.length_bytes) for piece in pieces]
        return ReadJob(ROOM, self.session, pieces, checksum(ranges, ROOM) ^ wrong, 20.0, parts)

    def page(self, here: int) -> bytes:
        return self.pool.data[here].numpy().tobytes()

    def expected(self, there: int) -> bytes:
        return self.contents[there * self.size : (there + 1) * self.size]


@pytest.mark.parametrize("block_pages", [1, 3, 64])
def test_a_read_of_any_length_lands_in_its_pages_and_nowhere_else(block_pages: int) -> None:
    ends = Ends(block_pages=block_pages)
    draw = random.Random(block_pages)
    theirs, ours = draw.sample(range(PAGES), 13), draw.sample(range(PAGES), 13)
    for _ in range(3):  # blocks come back
        ends.landing.read(ends.job(list(zip(theirs, ours, strict=True))))
    landed = dict(zip(ours, theirs, strict=True))
    for here in range(PAGES):
        wanted = ends.expected(landed[here]) if here in landed else bytes(ends.size)
        assert ends.page(here) == wanted
    limit = ends.memory.block_bytes
    assert all(sum(piece.length_bytes for piece in part) <= limit for part in ends.backend.asked)


def test_other_bytes_than_announced_are_refused() -> None:
    ends = Ends()
    with pytest.raises(ChecksumMismatchError):
        ends.landing.read(ends.job([(1, 2), (5, 6)], wrong=1))
    ends.landing.read(ends.job([(1, 2)]))
    assert ends.page(2) == ends.expected(1)


class WrittenBlocks(HostBlocks):
    """Somebody writes into a block just before it is copied into the pages."""

    def to_device(
        self, block: int, ranges: Sequence[tuple[int, int]], parts: int | None = None
    ) -> None:
        memory_at(self.address_of(block), 1)[0] ^= 1
        super().to_device(block, ranges, parts)


@pytest.mark.parametrize("private_blocks", [0, 1], ids=["a-host's-pool", "a-device's-pool"])
def test_what_is_written_into_a_block_after_the_read_is_found_in_the_pages(
    private_blocks: int,
) -> None:
    """Pages are checked where nobody else writes."""
    ends = Ends(private_blocks=private_blocks, memory=WrittenBlocks)
    with pytest.raises(ChecksumMismatchError):
        ends.landing.read(ends.job([(1, 2)]))


def test_so_it_is_where_pages_are_divided_by_heads() -> None:
    good, written = Ends(), Ends(memory=WrittenBlocks)
    good.landing.read(good.job([(1, 2)], parts=2))
    with pytest.raises(ChecksumMismatchError):
        written.landing.read(written.job([(1, 2)], parts=2))


def test_a_read_that_may_still_land_costs_a_block_and_no_page() -> None:
    ends = Ends(blocks=2)

    def late() -> None:
        raise TransferTimeoutError("not done", may_still_land=True)

    ends.backend.before = late
    for _ in range(2):
        with pytest.raises(TransferTimeoutError) as caught:
            ends.landing.read(ends.job([(1, 2)]))
        assert not caught.value.may_still_land
    ends.backend.before = lambda: None
    with pytest.raises(StagingLostError, match="all 2 blocks"):
        ends.landing.read(ends.job([(1, 2)]))


def test_a_failure_costs_no_block() -> None:
    ends = Ends(blocks=1)

    def fail() -> None:
        raise TransferError("gone")

    ends.backend.before = fail
    with pytest.raises(TransferError, match="gone"):
        ends.landing.read(ends.job([(1, 2)]))
    ends.backend.before = lambda: None
    ends.landing.read(ends.job([(1, 2)]))


def test_the_backend_is_told_to_end_what_it_reads_for_a_job() -> None:
    ends = Ends()
    job = ends.job([(1, 2), (7, 3)])
    ends.backend.before = lambda: ends.landing.interrupt(job)
    ends.landing.read(job)
    assert ends.backend.interrupted == [tuple(ends.backend.asked[0])]
    ends.landing.interrupt(job)
    assert len(ends.backend.interrupted) == 1


def test_bytes_that_an_adapter_wrote_into_a_device_are_checked_through_a_block() -> None:
    ends = Ends(blocks=1, block_pages=2)
    ends.backend.register(ends.pool.address, PAGES * ends.size)
    landing = DirectLanding(ends.backend, ends.checksum)
    landing.read(ends.job([(1, 2), (3, 9), (2, 10), (4, 11), (9, 1)]))
    assert ends.page(9) == ends.expected(3)
    with pytest.raises(ChecksumMismatchError):
        landing.read(ends.job([(1, 2)], wrong=1))


def test_a_piece_is_divided_where_a_block_ends() -> None:
    parts = list(
        in_blocks([MemoryPiece(0, 100, 5), MemoryPiece(50, 200, 7), MemoryPiece(80, 300, 4)], 8)
    )
    assert parts == [
        [MemoryPiece(0, 100, 5), MemoryPiece(50, 200, 3)],
        [MemoryPiece(53, 203, 4), MemoryPiece(80, 300, 4)],
    ]
