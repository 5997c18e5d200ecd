"""Publishes pages that peers cannot reach: a thread copies them into blocks of host memory.

Pages are copied in order, in parts that fit a block. A block is reused when the decode engine has
read it, or when its room has ended. So a few blocks suffice for prompts of any length, and a prompt
that waits for a block waits only for reads. Knows no requests, sockets or devices.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sluice_runtime.handover.loop_thread import HandoverThreadError
from sluice_runtime.handover.messages import Chunk
from sluice_runtime.handover.ports import ComputedPages
from sluice_runtime.handover.publishing import Checksum, chunk_of
from sluice_runtime.handover.transfer.staging import StagingMemory


@dataclass(frozen=True, slots=True)
class Staging:
    """Inputs of a `StagedPublisher`."""

    memory: StagingMemory
    page_bytes: int
    page_tokens: int
    checksum: Checksum
    """Function that computes the checksum of the pages themselves, since others may be able to
    write into the copies."""
    copies: bool = True
    """Whether decode engines read copies. Otherwise they read the pages themselves, and the thread
    only computes checksums."""


class StagedPublisher:
    """A `PagePublisher` that copies pages to host memory. `wake`: called when a chunk can be
    announced."""

    def __init__(self, staging: Staging, wake: Callable[[], None]) -> None:
        self._staging = staging
        self._wake = wake
        self._changed = threading.Condition()
        """Around everything below; notified when the thread may find something to do."""
        self._waiting: deque[ComputedPages] = deque()
        self._free = list(range(staging.memory.counts.shared))
        self._held: dict[int, list[tuple[int, int]]] = {}
        """Room → (end of a chunk, its block), in the order in which they were announced."""
        self._open: Counter[int] = Counter()
        """Parts of each room that were not given out; a room that is forgotten has none."""
        self._chunks: list[Chunk] = []
        self._failure: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="kv-stage", daemon=True)
        self._thread.start()

    def publish(self, pages: ComputedPages) -> None:
        parts = list(in_parts(pages, self._staging))
        with self._changed:
            self._waiting += parts
            self._open[pages.room] += len(parts)
            self._changed.notify()

    def chunks(self) -> list[Chunk]:
        with self._changed:
            if self._failure is not None:
                raise HandoverThreadError(f"{self._thread.name}: {self._failure}")
            chunks, self._chunks = self._chunks, []
            for chunk in chunks:
                self._open[chunk.room] -= 1
            self._open += Counter()  # leaves out zeros
            return chunks

    def pending(self, room: int) -> bool:
        with self._changed:
            return self._open[room] > 0

    def read(self, room: int, end: int) -> None:
        with self._changed:
            held = self._held.get(room, [])
            block = next((entry for entry in held if entry[0] == end), None)
            if block is not None:
                held.remove(block)
                self._release(block[1])

    def forget(self, room: int) -> None:
        with self._changed:
            self._waiting = deque(part for part in self._waiting if part.room != room)
            self._chunks = [chunk for chunk in self._chunks if chunk.room != room]
            del self._open[room]
            for _, block in self._held.pop(room, []):
                self._release(block)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        try:
            while (taken := self._next()) is not None:
                self._stage(*taken)
                self._wake()
        except Exception as failure:
            with self._changed:
                self._failure = failure
            self._wake()

    def _next(self) -> tuple[ComputedPages, int] | None:
        """Waits for a part and a free block; None once the publisher is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._waiting and self._free))
            return None if self._closed else (self._waiting.popleft(), self._free.pop())

    def _stage(self, part: ComputedPages, block: int) -> None:
        staging, pages = self._staging, part.page_ids
        if staging.copies:
            staging.memory.to_host(block, runs(pages, staging.page_bytes))
        checksum = staging.checksum(pages, part.room)
        with self._changed:
            # If the room was forgotten meanwhile, no engine will read the block or give it back.
            if self._open[part.room] == 0:
                self._release(block)
            elif staging.copies:
                self._held.setdefault(part.room, []).append((part.end, block))
                first = block * staging.memory.block_pages
                copies = tuple(range(first, first + len(pages)))
                self._chunks.append(chunk_of(part, checksum, copies))
            else:
                self._release(block)
                self._chunks.append(chunk_of(part, checksum))

    def _release(self, block: int) -> None:
        """Called under the lock."""
        self._free.append(block)
        self._changed.notify()


def in_parts(pages: ComputedPages, staging: Staging) -> Iterator[ComputedPages]:
    """Pages that each fit into a block."""
    step = staging.memory.block_pages
    for first in range(0, len(pages.page_ids), step):
        ids = pages.page_ids[first : first + step]
        start = pages.start + first * staging.page_tokens
        end = min(pages.end, start + len(ids) * staging.page_tokens)
        yield ComputedPages(pages.room, start, end, ids)


def runs(page_ids: Sequence[int], page_bytes: int) -> list[tuple[int, int]]:
    """Ranges (first byte, length) of pages in the order given; neighbouring pages make one
    range."""
    joined: list[tuple[int, int]] = []
    for page in page_ids:
        first = page * page_bytes
        if joined and sum(joined[-1]) == first:
            joined[-1] = joined[-1][0], joined[-1][1] + page_bytes
        else:
            joined.append((first, page_bytes))
    return joined
