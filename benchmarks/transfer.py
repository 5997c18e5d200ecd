"""Our `PageReader` compared with Mooncake's engine alone: the same bytes in the same pieces.

The engine alone is its `batch_transfer_sync_read`, with at most 1,024 pieces a call and with the
settings that we give it. The two take turns, and the ratio is the median over the rounds. Also with
a checksum of every byte, and with backend TCP. Memory is another process's, and neighbouring pieces
are never joined. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sluice_runtime.handover.transfer.backend import MAX_DESCRIPTORS, MemoryPiece, TransferBackend
from sluice_runtime.handover.transfer.landing import DirectLanding
from sluice_runtime.handover.transfer.mooncake_engine import MooncakeEngine, start_engine
from sluice_runtime.handover.transfer.reader import PageReader
from sluice_runtime.handover.transfer.reads import ReadJob
from sluice_runtime.handover.transfer.registered import checksum
from sluice_runtime.handover.transfer.registry import TransferSettings, create_backend

HOST = "127.0.0.1"
MEMORY_BYTES = 128 << 20
SHAPES = ((4 << 10, 1024), (64 << 10, 1024), (256 << 10, 256), (1 << 20, 64), (8 << 20, 8))
"""Shapes as (bytes of a piece, pieces): 64 MiB, except for the smallest."""
TIMEOUT_SECONDS = 60.0
ROOM = 1


@dataclass(frozen=True)
class Sample:
    """One read."""

    seconds: float
    cpu_seconds: float
    """CPU seconds of all threads of this process, the reading side."""


class Ours:
    """A reader over one backend, used for one job at a time."""

    def __init__(self, name: str, session: str, address: int) -> None:
        self._backend: TransferBackend = create_backend(name, TransferSettings(HOST))
        self._backend.register(address, MEMORY_BYTES)
        self._session = session
        self._finished = threading.Event()
        self._reader = PageReader(DirectLanding(self._backend), self._finished.set)

    def read(self, pieces: list[MemoryPiece], expected: int | None = None) -> None:
        self._finished.clear()
        self._reader.submit(ReadJob(ROOM, self._session, tuple(pieces), expected, TIMEOUT_SECONDS))
        self._finished.wait()
        (result,) = self._reader.finished()
        if result.error is not None:
            raise result.error

    def close(self) -> None:
        self._reader.close()
        self._backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    memory, address = allocate()
    with peer("Mooncake") as (session, remote), peer("TCP") as (tcp_session, tcp_remote):
        alone = start_engine(HOST, "tcp", None)
        assert alone.register_memory(address, MEMORY_BYTES) == 0
        ours = Ours("Mooncake", session, address)
        tcp = Ours("TCP", tcp_session, address)
        for size, count in SHAPES:
            pieces = apart(remote, address, size, count)
            ours.read(pieces)
            ours_read = ((piece.local_address, size) for piece in pieces)
            expected = checksum(ours_read, ROOM)
            tcp_pieces = apart(tcp_remote, address, size, count)
            ways = {
                "engine": partial(read_alone, alone, session, pieces),
                "reader": partial(ours.read, pieces),
                "reader_checked": partial(ours.read, pieces, expected),
                "tcp": partial(tcp.read, tcp_pieces),
            }
            report(size, count, measure(ways, arguments.rounds))
        ours.close()
        tcp.close()
    del memory


def measure(ways: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[Sample]]:
    """Samples of each way, taken in turns; the first round is a warm-up."""
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, read in ways.items():
            began, cpu = time.perf_counter(), time.process_time()
            read()
            sample = Sample(time.perf_counter() - began, time.process_time() - cpu)
            if number:
                samples[name].append(sample)
    return samples


def report(size: int, count: int, samples: dict[str, list[Sample]]) -> None:
    gigabytes = size * count / 1e9
    engine = [sample.seconds for sample in samples["engine"]]
    for name, each in samples.items():
        seconds = [sample.seconds for sample in each]
        ratios = [alone / own for alone, own in zip(engine, seconds, strict=True)]
        figures = {
            "bench": "transfer",
            "figure": f"{name}.gb_per_second",
            "value": round(gigabytes / statistics.median(seconds), 3),
            "ratio_to_engine": round(statistics.median(ratios), 2),
            "cpu_seconds_per_gb": round(
                statistics.median(sample.cpu_seconds for sample in each) / gigabytes, 2
            ),
            "piece_bytes": size,
            "pieces": count,
        }
        print(json.dumps(figures), flush=True)


def read_alone(engine: MooncakeEngine, session: str, pieces: list[MemoryPiece]) -> None:
    for start in range(0, len(pieces), MAX_DESCRIPTORS):
        remote, local, lengths = zip(*pieces[start : start + MAX_DESCRIPTORS], strict=True)
        address = session.partition("#")[0]
        read = engine.batch_transfer_sync_read  # type: ignore[attr-defined]
        assert read(address, list(local), list(remote), list(lengths)) == 0


def apart(remote: int, local: int, size: int, count: int) -> list[MemoryPiece]:
    """Pieces with a gap between them, in both memories."""
    return [MemoryPiece(remote + 2 * size * n, local + 2 * size * n, size) for n in range(count)]


def allocate() -> tuple[mmap.mmap, int]:
    """Memory whose pages are touched, as in a pool in use, and its address."""
    memory = mmap.mmap(-1, MEMORY_BYTES)
    memory[:] = bytes(range(256)) * (MEMORY_BYTES // 256)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def serve(name: str) -> None:
    """Serves memory to the reading process until standard input ends."""
    memory, address = allocate()
    backend = create_backend(name, TransferSettings(HOST))
    backend.register(address, MEMORY_BYTES)
    print(json.dumps([backend.session, address]), flush=True)
    sys.stdin.read()
    backend.close()
    del memory


@contextmanager
def peer(name: str) -> Iterator[tuple[str, int]]:
    """The process that serves memory: its session and the address of its memory."""
    command = [sys.executable, "-m", "benchmarks.transfer", "--serve", name]
    root = Path(__file__).parents[1]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdout is not None
        session, address = json.loads(process.stdout.readline())
        yield session, address
        assert process.stdin is not None
        process.stdin.close()


if __name__ == "__main__":
    main()
