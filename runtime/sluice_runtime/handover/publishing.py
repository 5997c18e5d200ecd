"""Publishes computed pages in host memory, which peers read in place.

Knows neither requests nor sockets; `staged_publisher` is for pages that are copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluice_runtime.handover.messages import Chunk
from sluice_runtime.handover.ports import ComputedPages

Checksum = Callable[[Sequence[int], int], int]
"""Function: (page ids, room) → checksum of the pages' bytes in this order."""


class HostPublisher:
    """A `PagePublisher` that announces the pool's own pages at once."""

    def __init__(self, checksum: Checksum) -> None:
        self._checksum = checksum
        self._chunks: list[Chunk] = []

    def publish(self, pages: ComputedPages) -> None:
        self._chunks.append(chunk_of(pages, self._checksum(pages.page_ids, pages.room)))

    def chunks(self) -> list[Chunk]:
        chunks, self._chunks = self._chunks, []
        return chunks

    def pending(self, room: int) -> bool:
        return any(chunk.room == room for chunk in self._chunks)

    def read(self, room: int, end: int) -> None:
        """Does nothing: no copy has to be released."""

    def forget(self, room: int) -> None:
        self._chunks = [chunk for chunk in self._chunks if chunk.room != room]

    def close(self) -> None:
        """Does nothing: there is no thread."""


def chunk_of(pages: ComputedPages, checksum: int, copies: tuple[int, ...] | None = None) -> Chunk:
    """Announcement of pages, or of copies of them."""
    ids = pages.page_ids if copies is None else copies
    return Chunk(pages.room, pages.start, pages.end, ids, checksum)
