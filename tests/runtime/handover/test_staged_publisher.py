"""Computed pages of a device go through a few blocks of host memory, in order, whatever happens."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import pytest
import torch
from sluice_runtime.handover.loop_thread import HandoverThreadError
from sluice_runtime.handover.messages import Chunk
from sluice_runtime.handover.ports import ComputedPages
from sluice_runtime.handover.staged_publisher import StagedPublisher, Staging, runs
from sluice_runtime.handover.transfer.registered import checksum_of_pages, memory_at
from sluice_runtime.kv.host_blocks import BlockCounts, HostBlocks
from sluice_runtime.kv.pool import KvShape, PagePool

from tests.patience import PATIENCE_SECONDS

PAGES, PAGE_TOKENS, BLOCKS, BLOCK_PAGES = 64, 4, 3, 2


class Bench:
    """A publisher over a pool of random bytes."""

    def __init__(self, pool: PagePool, blocks: HostBlocks, *, copies: bool = True) -> None:
        self.pool, self.blocks = pool, blocks
        self.woken = threading.Semaphore(0)
        of_pages = partial(checksum_of_pages, pool.address, pool.page_bytes)
        staging = Staging(blocks, pool.page_bytes, PAGE_TOKENS, of_pages, copies)
        self.publisher = StagedPublisher(staging, self.woken.release)

    def next_chunks(self) -> list[Chunk]:
        """Waits until there is at least one."""
        while not (chunks := self.publisher.chunks()):
            assert self.woken.acquire(timeout=PATIENCE_SECONDS), "nothing was staged"
        return chunks

    def bytes_of(self, chunk: Chunk) -> bytes:
        """What a decode engine reads."""
        size = self.pool.page_bytes
        return b"".join(
            memory_at(self.blocks.address + page * size, size).tobytes() for page in chunk.page_ids
        )

    def original(self, pages: Sequence[int]) -> bytes:
        size = self.pool.page_bytes
        return b"".join(
            memory_at(self.pool.address + page * size, size).tobytes() for page in pages
        )

    def check_all_free(self) -> None:
        self.publisher.close()  # a part that was being copied gives its block back after the copy
        assert sorted(self.publisher._free) == list(range(BLOCKS))
        assert not self.publisher._held
        assert not self.publisher._open


@pytest.fixture
def pool() -> PagePool:
    made = PagePool(KvShape(2, 1, 8, torch.float32), PAGES, PAGE_TOKENS)
    made.data.copy_(torch.rand(made.data.shape))
    return made


@contextmanager
def bench(pool: PagePool, blocks: HostBlocks | None = None, **more: bool) -> Iterator[Bench]:
    blocks = blocks or HostBlocks(pool, BlockCounts(BLOCKS), BLOCK_PAGES * pool.page_bytes)
    made = Bench(pool, blocks, **more)
    with closing(made.publisher):
        yield made


@pytest.mark.parametrize("seed", range(8))
def test_prompts_of_any_length_get_through_a_few_blocks(pool: PagePool, seed: int) -> None:
    """Rooms together need many times the blocks; every chunk that is announced has the bytes of
    its pages until it is read, and chunks of a room follow each other."""
    draw = random.Random(seed)
    asked = {room: draw.sample(range(PAGES), draw.randint(1, 9)) for room in range(12)}
    ends = {room: len(pages) * PAGE_TOKENS - draw.randrange(4) for room, pages in asked.items()}
    covered: dict[int, int] = defaultdict(int)
    unread: list[Chunk] = []
    with bench(pool) as made:
        for room, pages in asked.items():
            made.publisher.publish(ComputedPages(room, 0, ends[room], tuple(pages)))
        while any(covered[room] < ends[room] for room in asked):
            for chunk in made.next_chunks():
                assert chunk.start == covered[chunk.room]
                covered[chunk.room] = chunk.end
                unread.append(chunk)
            draw.shuffle(unread)
            for chunk in unread:
                first = chunk.start // PAGE_TOKENS
                pages = asked[chunk.room][first : first + len(chunk.page_ids)]
                assert made.bytes_of(chunk) == made.original(pages)
                size = pool.page_bytes
                assert chunk.checksum == checksum_of_pages(pool.address, size, pages, chunk.room)
            if draw.random() < 0.3:
                gone = draw.choice(unread).room
                made.publisher.forget(gone)
                covered[gone] = ends[gone]
                unread = [chunk for chunk in unread if chunk.room != gone]
            elif unread:
                read = unread.pop()
                made.publisher.read(read.room, read.end)
        for room in asked:
            assert not made.publisher.pending(room)
            made.publisher.forget(room)
        made.check_all_free()


class Paused(HostBlocks):
    """Copies when it is told to; fails when it is told to."""

    def __init__(self, pool: PagePool) -> None:
        super().__init__(pool, BlockCounts(BLOCKS), BLOCK_PAGES * pool.page_bytes)
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.failure: Exception | None = None
        self.copied: list[tuple[int, int]] = []

    def to_host(
        self, block: int, ranges: Sequence[tuple[int, int]], parts: int | None = None
    ) -> None:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        if self.failure:
            raise self.failure
        self.copied += ranges
        super().to_host(block, ranges, parts)


def test_a_room_that_ends_while_it_is_copied_costs_no_block(pool: PagePool) -> None:
    memory = Paused(pool)
    with bench(pool, memory) as made:
        made.publisher.publish(ComputedPages(1, 0, 4, (5,)))
        assert memory.begun.wait(PATIENCE_SECONDS)
        assert made.publisher.pending(1)
        made.publisher.forget(1)
        memory.go_on.set()
        made.publisher.publish(ComputedPages(2, 0, 4, (6,)))
        (chunk,) = made.next_chunks()
        assert chunk.room == 2
        made.publisher.forget(2)
        made.check_all_free()


def test_neighbours_are_one_copy(pool: PagePool) -> None:
    memory = Paused(pool)
    memory.go_on.set()
    with bench(pool, memory) as made:
        made.publisher.publish(ComputedPages(1, 0, 16, (5, 6, 9, 8)))
        while made.publisher.pending(1):
            made.next_chunks()
    size = pool.page_bytes
    assert memory.copied == [(5 * size, 2 * size), (9 * size, size), (8 * size, size)]
    assert runs([], size) == []


class WrittenBlocks(HostBlocks):
    """Somebody writes into a block as soon as pages were copied into it."""

    def to_host(
        self, block: int, ranges: Sequence[tuple[int, int]], parts: int | None = None
    ) -> None:
        super().to_host(block, ranges, parts)
        memory_at(self.address_of(block), 1)[0] ^= 1


def test_the_checksum_is_that_of_the_pages_whatever_is_written_into_their_copies(
    pool: PagePool,
) -> None:
    memory = WrittenBlocks(pool, BlockCounts(BLOCKS), BLOCK_PAGES * pool.page_bytes)
    with bench(pool, memory) as made:
        made.publisher.publish(ComputedPages(1, 0, 8, (5, 9)))
        (chunk,) = made.next_chunks()
        assert made.bytes_of(chunk) != made.original((5, 9))
        assert chunk.checksum == checksum_of_pages(pool.address, pool.page_bytes, (5, 9), 1)


def test_pages_that_are_read_where_they_are_are_not_copied(pool: PagePool) -> None:
    memory = Paused(pool)
    with bench(pool, memory, copies=False) as made:
        pages = (3, 4, 9, 1, 60, 2, 8, 7, 12)
        made.publisher.publish(ComputedPages(7, 0, 36, pages))
        found: list[Chunk] = []
        while made.publisher.pending(7):
            found += made.next_chunks()
        assert tuple(page for chunk in found for page in chunk.page_ids) == pages
        for chunk in found:
            size = pool.page_bytes
            assert chunk.checksum == checksum_of_pages(pool.address, size, chunk.page_ids, 7)
        assert not memory.begun.is_set()
        made.check_all_free()


def test_a_copy_that_fails_ends_the_engine_and_not_the_thread_alone(pool: PagePool) -> None:
    memory = Paused(pool)
    memory.failure = RuntimeError("CUDA error: an illegal memory access")
    memory.go_on.set()
    with bench(pool, memory) as made:
        made.publisher.publish(ComputedPages(1, 0, 4, (5,)))
        with pytest.raises(HandoverThreadError, match="kv-stage: CUDA error"):
            made.next_chunks()
