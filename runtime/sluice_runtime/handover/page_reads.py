"""Turns the loop's reads of pages into a `PageReader`'s jobs: page numbers become addresses.

Pages that are neighbours on both sides are one piece, so pieces are few and long. Their order is
that of the bytes, which checksums go by. Knows neither rooms nor requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sluice_runtime.errors import EngineUnfitError
from sluice_runtime.handover.ports import PageRead, PagesRead, ReadCounts
from sluice_runtime.handover.transfer.backend import MemoryPiece, TransferError
from sluice_runtime.handover.transfer.reader import PageReader
from sluice_runtime.handover.transfer.reads import ReadJob, ReadResult, StagingLostError


@dataclass(frozen=True, slots=True)
class LocalPages:
    """Location and layout of our own pages."""

    address: int
    """Address of page 0."""
    page_bytes: int
    parts: int = 1
    """Parts of each page, one for each of our ranks that holds no copies."""
    kv_heads: int = 1
    """Key heads of the model."""

    def divides(self, parts: int) -> bool:
        """Whether pages of an engine with `parts` ranks have whole heads in each part."""
        return parts == self.parts or (parts > 0 and self.kv_heads % parts == 0)


class PageReads:
    """A `PagePort` over a `PageReader`. `wake`: called if a result is available at once, as after a
    refusal."""

    def __init__(
        self,
        reader: PageReader,
        local: LocalPages,
        timeout_seconds: float,
        wake: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._local = local
        self._timeout_seconds = timeout_seconds
        self._wake = wake
        self._jobs: dict[int, tuple[ReadJob, int]] = {}
        """Jobs and the numbers of their reads, by the identity of the job."""
        self._refused: list[PagesRead] = []

    def submit(self, read: PageRead) -> None:
        parts, heads = read.memory.parts, self._local.kv_heads
        if not self._local.divides(parts):
            allowed = f"a divisor of the model's {heads} key heads"
            self._refuse(
                read.number, f"parts of a page: {parts} is not allowed; allowed: {allowed}"
            )
            return
        job = self._job(read)
        self._jobs[id(job)] = job, read.number
        try:
            self._reader.submit(job)
        except TransferError as error:
            del self._jobs[id(job)]
            self._refuse(read.number, str(error))

    def cancel(self, room: int) -> None:
        self._reader.cancel(room)

    def finished(self) -> list[PagesRead]:
        refused, self._refused = self._refused, []
        return refused + [self._result(result) for result in self._reader.finished()]

    def counts(self) -> ReadCounts:
        counts = self._reader.counts()
        return ReadCounts(counts.read_bytes, counts.read_seconds, counts.reads)

    def _refuse(self, number: int, error: str) -> None:
        self._refused.append(PagesRead(number, error))
        self._wake()

    def _result(self, result: ReadResult) -> PagesRead:
        """
        Raises:
            EngineUnfitError: the backend can never read again.
        """
        number, error = self._jobs.pop(id(result.job))[1], result.error
        if isinstance(error, StagingLostError):
            raise EngineUnfitError(f"KV transfer: {error}")
        may_still_land = bool(error and error.may_still_land)
        return PagesRead(number, str(error) if error else None, may_still_land)

    def _job(self, read: PageRead) -> ReadJob:
        memory, local = read.memory, self._local
        pieces = page_pieces(
            memory.pool_address,
            local.address,
            local.page_bytes,
            read.page_ids,
            read.local_page_ids,
        )
        return ReadJob(
            room=read.room,
            session=memory.session,
            pieces=tuple(pieces),
            expected_checksum=read.checksum,
            timeout_seconds=self._timeout_seconds,
            parts=None if memory.parts == local.parts else memory.parts,
        )


def page_pieces(
    remote_base: int,
    local_base: int,
    page_bytes: int,
    remote_pages: Sequence[int],
    local_pages: Sequence[int],
) -> list[MemoryPiece]:
    """Pieces that read page `remote_pages[i]` of the peer's pool into page `local_pages[i]` of
    ours.

    A base is the address of page 0. Both lists have the same length.
    """
    return coalesce(
        MemoryPiece(remote_base + remote * page_bytes, local_base + local * page_bytes, page_bytes)
        for remote, local in zip(remote_pages, local_pages, strict=True)
    )


def coalesce(pieces: Iterable[MemoryPiece]) -> list[MemoryPiece]:
    """Joins each piece that continues the previous one on both sides; drops empty pieces."""
    joined: list[MemoryPiece] = []
    for piece in pieces:
        if piece.length_bytes == 0:
            continue
        if joined and _continues(joined[-1], piece):
            remote, local, length = joined[-1]
            joined[-1] = MemoryPiece(remote, local, length + piece.length_bytes)
        else:
            joined.append(piece)
    return joined


def _continues(before: MemoryPiece, piece: MemoryPiece) -> bool:
    remote, local, length = before
    return piece.remote_address == remote + length and piece.local_address == local + length
