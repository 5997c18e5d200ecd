"""The threads that read pages, with a backend that does as it is told."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sluice_contract.wire.load import MEASURED_BYTES
from sluice_runtime.handover.transfer.backend import (
    MemoryPiece,
    PeerUnreachableError,
    TransferBackend,
)
from sluice_runtime.handover.transfer.landing import DirectLanding
from sluice_runtime.handover.transfer.memory import MemoryBackend, MemoryNetwork
from sluice_runtime.handover.transfer.reader import MAX_PER_SESSION, PageReader
from sluice_runtime.handover.transfer.reads import ReaderFullError, ReadJob, ReadResult
from sluice_runtime.handover.transfer.registered import checksum

from tests.patience import PATIENCE_SECONDS
from tests.runtime.handover.transfer.memory_block import MemoryBlock, contents

SIZE = 1 << 16


class ToldBackend:
    """`on_read` is given the session; it may wait or raise."""

    name = "Told"
    is_authenticated = True
    reaches_devices = False
    session = "told"

    def __init__(self, on_read: Callable[[str], None] = lambda session: None) -> None:
        self._on_read = on_read

    def register(self, address: int, length_bytes: int) -> None: ...

    def read(self, session: str, pieces: Sequence[MemoryPiece], timeout_seconds: float) -> None:
        self._on_read(session)

    def interrupt(self, pieces: Sequence[MemoryPiece]) -> None: ...

    def close(self) -> None: ...


class Readers:
    """Makes readers, and closes them."""

    def __init__(self) -> None:
        self._made: list[PageReader] = []
        self._woken = threading.Semaphore(0)

    def __call__(self, backend: TransferBackend, **settings: Any) -> PageReader:
        self._made.append(PageReader(DirectLanding(backend), self._woken.release, **settings))
        return self._made[-1]

    def results(self, reader: PageReader, count: int) -> list[ReadResult]:
        """The next `count`, awaited by the callback alone."""
        found: list[ReadResult] = []
        while len(found) < count:
            assert self._woken.acquire(timeout=PATIENCE_SECONDS), f"{len(found)} of {count} results"
            found += reader.finished()
        return found

    def close(self) -> None:
        for reader in self._made:
            reader.close()


@pytest.fixture
def readers() -> Iterator[Readers]:
    made = Readers()
    yield made
    made.close()


def job(
    room: int, session: str = "a", pieces: tuple[MemoryPiece, ...] = (), **fields: Any
) -> ReadJob:
    return ReadJob(room, session, pieces, fields.get("checksum"), 5.0)


class Pair:
    """Memory here and there, and the piece that is all of it."""

    def __init__(self) -> None:
        network = MemoryNetwork()
        self.there, self.here = MemoryBlock(SIZE), MemoryBlock(SIZE)
        self.there.fill(contents(1, SIZE))
        peer, self.backend = MemoryBackend(network), MemoryBackend(network)
        peer.register(self.there.address, SIZE)
        self.backend.register(self.here.address, SIZE)
        self.session = peer.session
        self.pieces = (MemoryPiece(self.there.address, self.here.address, SIZE),)
        self.checksum = checksum([(self.there.address, SIZE)], room=7)


def test_bytes_are_there_and_counted_when_the_callback_comes(readers: Readers) -> None:
    pair = Pair()
    reader = readers(pair.backend)
    reader.submit(job(7, pair.session, pair.pieces, checksum=pair.checksum))
    (result,) = readers.results(reader, 1)
    assert (result.job.room, result.error) == (7, None)
    assert pair.here.bytes_at(0, SIZE) == pair.there.bytes_at(0, SIZE)
    counts = reader.counts()
    assert (counts.reads, counts.read_bytes, counts.failures) == (1, SIZE, {})
    assert counts.read_seconds == pytest.approx(result.seconds)
    assert reader.finished() == []


def test_other_bytes_than_announced_are_an_error(readers: Readers) -> None:
    pair = Pair()
    reader = readers(pair.backend)
    pair.there.fill(b"changed after it was announced")
    reader.submit(job(7, pair.session, pair.pieces, checksum=pair.checksum))
    (result,) = readers.results(reader, 1)
    assert result.error is not None
    assert result.error.reason == "ChecksumMismatch"
    assert f"announced: {pair.checksum:016x}" in str(result.error)
    assert reader.counts().failures == {"ChecksumMismatch": 1}
    assert reader.counts().read_bytes == 0


def test_a_bug_is_a_failed_result_and_no_dead_thread(
    readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(session: str) -> None:
        raise {"bug": KeyError("x"), "gone": PeerUnreachableError("gone")}[session]

    reader = readers(ToldBackend(fail), workers=1)
    for session in ("bug", "gone", "bug"):
        reader.submit(job(1, session))
    errors = [result.error for result in readers.results(reader, 3)]
    assert [error.reason for error in errors if error] == [
        "Unexpected", "PeerUnreachable", "Unexpected",
    ]  # fmt: skip
    assert [error.may_still_land for error in errors if error] == [True, False, True]
    assert reader.counts().failures == {"Unexpected": 2, "PeerUnreachable": 1}
    assert "a read failed unexpectedly" in caplog.text


def test_a_callback_that_raises_stops_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Semaphore(0)

    def callback() -> None:
        called.release()
        raise OSError("closed")

    reader = PageReader(DirectLanding(ToldBackend()), callback, workers=1)
    for room in range(3):
        reader.submit(job(room))
        assert called.acquire(timeout=PATIENCE_SECONDS)
    reader.close()
    assert len(reader.finished()) == 3


class Gate:
    """Reads of sessions `frozen…` wait for `open`."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began = threading.Semaphore(0)

    def __call__(self, session: str) -> None:
        if session.startswith("frozen"):
            self.began.release()
            assert self.open.wait(PATIENCE_SECONDS)


def test_a_frozen_peer_leaves_threads_for_the_others(readers: Readers) -> None:
    gate = Gate()
    reader = readers(ToldBackend(gate), workers=MAX_PER_SESSION + 1)
    for room in range(10):
        reader.submit(job(room, "frozen"))
    for _ in range(MAX_PER_SESSION):
        assert gate.began.acquire(timeout=PATIENCE_SECONDS)
    reader.submit(job(99, "well"))
    assert [result.job.room for result in readers.results(reader, 1)] == [99]
    assert (reader.counts().running, reader.counts().queued) == (MAX_PER_SESSION, 8)
    gate.open.set()
    assert sorted(result.job.room for result in readers.results(reader, 10)) == list(range(10))
    assert (reader.counts().running, reader.counts().queued) == (0, 0)


def test_two_frozen_peers_leave_a_thread_for_the_others(readers: Readers) -> None:
    gate = Gate()
    reader = readers(ToldBackend(gate), workers=4)
    for room in range(10):
        reader.submit(job(room, f"frozen {room % 2}"))
    for _ in range(3):
        assert gate.began.acquire(timeout=PATIENCE_SECONDS)
    reader.submit(job(99, "well"))
    assert [result.job.room for result in readers.results(reader, 1)] == [99]
    gate.open.set()
    assert len(readers.results(reader, 10)) == 10


def test_what_waits_can_be_cancelled_and_what_runs_ends_by_itself(readers: Readers) -> None:
    gate = Gate()
    reader = readers(ToldBackend(gate), workers=1)
    reader.submit(job(1, "frozen"))
    assert gate.began.acquire(timeout=PATIENCE_SECONDS)
    for room in (1, 2, 1):
        reader.submit(job(room))
    reader.cancel(1)
    cancelled = readers.results(reader, 2)
    assert [(each.job.room, each.error and each.error.reason) for each in cancelled] == [
        (1, "Cancelled"), (1, "Cancelled"),
    ]  # fmt: skip
    gate.open.set()
    rest = readers.results(reader, 2)
    assert [(each.job.room, each.error) for each in rest] == [(1, None), (2, None)]


def test_what_carries_the_pages_and_how_fast_is_said_once(
    readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    reader = readers(ToldBackend(), wire="NIXL over rdma", workers=1)
    caplog.set_level("INFO", "sluice.handover.reader")
    piece = MemoryPiece(1, 1, MEASURED_BYTES // 2)
    for said in (0, 1, 1):
        reader.submit(job(1, pieces=(piece,)))
        assert readers.results(reader, 1)[0].error is None
        assert len(caplog.messages) == said
    assert re.fullmatch(
        r"KV transfer: NIXL over rdma, [\d.e+]+ GB/s in the first 16 MiB", caplog.messages[0]
    )


def test_no_more_jobs_wait_than_allowed(readers: Readers) -> None:
    gate = Gate()
    reader = readers(ToldBackend(gate), workers=1, max_queued=2)
    reader.submit(job(1, "frozen"))
    assert gate.began.acquire(timeout=PATIENCE_SECONDS)
    reader.submit(job(2))
    reader.submit(job(3))
    with pytest.raises(ReaderFullError, match="room 4: the reader is full: 2 reads wait"):
        reader.submit(job(4))
    gate.open.set()
    assert [result.job.room for result in readers.results(reader, 3)] == [1, 2, 3]


def test_after_close_no_thread_is_left_and_nothing_is_taken() -> None:
    before = threading.active_count()
    reader = PageReader(DirectLanding(ToldBackend()), lambda: None)
    assert threading.active_count() > before
    reader.close()
    assert threading.active_count() == before
    with pytest.raises(ReaderFullError, match="closed"):
        reader.submit(job(1))
