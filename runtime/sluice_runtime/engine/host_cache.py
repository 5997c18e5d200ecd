"""The host tier's memory and file, and the copies that a batch asks for.

Evicted pages are copied out before the step that may overwrite them; on a GPU a separate stream
copies, and the step's stream waits for its event. A thread copies returning pages while steps run,
in the order of the batches. Another thread moves pages to disk, so that no step waits for that.
Each step reports which copies have ended. Pages read from the file are checked by xxh3; a changed
page counts as missing. Knows slots and pages, not their content.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec
import torch
import xxhash
from sluice_contract.base import ConfigError
from torch import Tensor

from sluice_runtime.engine.device import allocation
from sluice_runtime.engine.executors import LandingStep, StepLauncher
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.kv.host_blocks import Move, PoolCopies
from sluice_runtime.kv.pool import PagePool, zeros
from sluice_runtime.scheduler.batch import Batch, ForwardMode, HostCopied, SampledTokens
from sluice_runtime.scheduler.settings import HostPages

IDLE_SECONDS: Final = 0.005
"""Time that a step without rows waits for a copy to end. New requests wait for such a step."""

FILE: Final = "host-cache"
TOUCHED_BYTES: Final = 64 << 20
"""Host memory that one call touches, between which the cache can be closed."""
_MADV_POPULATE_WRITE: Final = 23
"""Advice MADV_POPULATE_WRITE of madvise, since Linux 5.14. It changes no content."""

logger = logging.getLogger("sluice.engine")

Pair = tuple[int, int]


class DiskPages:
    """Slots of one page each in a file."""

    def __init__(self, folder: str | None, page_bytes: int) -> None:
        """`folder`: folder of a named file, which counts towards a pod's volume limit; content of
        an earlier process is dropped. None: an unnamed file.

        Raises:
            InvalidConfigError: the folder does not exist, or another engine uses it.
        """
        try:
            self._file = _file_in(folder)
        except OSError as error:
            allowed = f"a folder to write to, which no other engine uses ({error.strerror})"
            raise InvalidConfigError(str(ConfigError("hostCacheFolder", folder, allowed))) from None
        self._page_bytes = page_bytes
        self._checksums: dict[int, int] = {}
        """Checksums of what was written, by slot."""

    def write(self, slot: int, page: memoryview) -> bool:
        """Writes a page to a slot; returns whether the disk has taken it."""
        self._checksums[slot] = xxhash.xxh3_64_intdigest(page)
        try:
            at = slot * self._page_bytes
            return os.pwrite(self._file.fileno(), page, at) == self._page_bytes
        except OSError as error:
            logger.warning("host cache: a page cannot be written to disk: %s", error)
            return False

    def read(self, slot: int, into: memoryview) -> bool:
        """Reads a slot; returns whether the content is what was written there."""
        try:
            read_bytes = os.preadv(self._file.fileno(), [into], slot * self._page_bytes)
        except OSError as error:
            logger.warning("host cache: a page cannot be read from disk: %s", error)
            return False
        whole = read_bytes == self._page_bytes
        if whole and xxhash.xxh3_64_intdigest(into) == self._checksums[slot]:
            return True
        logger.warning("host cache: slot %d of the disk is not as it was written", slot)
        return False

    def close(self) -> None:
        self._file.close()


def _file_in(folder: str | None) -> FileIO:
    if folder is None:
        return tempfile.TemporaryFile(buffering=0)
    file = FileIO(os.open(Path(folder) / FILE, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
    except OSError:
        file.close()
        raise
    return file


class HostCache:
    """Memory and file of the host tier, next to a pool."""

    def __init__(self, pool: PagePool, pages: HostPages, folder: str | None = None) -> None:
        """Raises:
        OutOfMemoryError: the host has too little memory.
        """
        self._page_bytes = pool.page_bytes
        self._memory_pages = pages.memory
        on_gpu = pool.data.device.type == "cuda"
        with allocation("host cache", f"{pages.memory} pages", "hostCache.memory"):
            # One more page than slots, through which pages for a GPU come from disk.
            self._memory = zeros(((pages.memory + on_gpu) * pool.page_bytes,), torch.uint8)
            if on_gpu:
                _pin(self._memory)
        self._out = PoolCopies(pool, self._memory)
        self._back = PoolCopies(pool, self._memory)
        self._bytes = self._memory.numpy().data
        self._pool_bytes: memoryview | None = None
        if not on_gpu:
            self._pool_bytes = pool.data.view(-1).view(torch.uint8).numpy().data
        self._disk = DiskPages(folder, pool.page_bytes) if pages.disk else None
        self._loader = ThreadPoolExecutor(1, "host-cache-load")
        self._spiller = ThreadPoolExecutor(1, "host-cache-spill")
        self._jobs: list[Future[HostCopied]] = []
        self._saved: torch.cuda.Event | None = None
        """Event of the last copies out, on a GPU; None before the first and on a CPU."""
        self._closed = False
        if not on_gpu:
            self._spiller.submit(self._touch)

    def over(self, runner: StepLauncher) -> HostCacheRunner:
        """A runner whose steps also begin the copies of their batch."""
        return HostCacheRunner(runner, self)

    def begin(self, batch: Batch) -> None:
        """Copies out pages that the step may overwrite, and starts the batch's other copies."""
        if (copies := batch.host_copies) is None:
            return
        if copies.saved:
            self._save(batch.step, copies.saved)
        if copies.loaded:
            self._submit(self._loader, self._load, batch.step, copies.loaded)
        if copies.spilled:
            self._submit(self._spiller, self._spill, batch.step, copies.spilled)

    def ended(self, wait_seconds: float) -> tuple[HostCopied, ...]:
        """Copies that have ended since the last call. Waits at most `wait_seconds` for one."""
        if self._jobs and wait_seconds:
            wait(self._jobs, wait_seconds, FIRST_COMPLETED)
        ended = [job for job in self._jobs if job.done()]
        self._jobs = [job for job in self._jobs if job not in ended]
        return tuple(job.result() for job in ended)

    def close(self) -> None:
        """Waits for the running copies."""
        self._closed = True
        for thread in (self._loader, self._spiller):
            thread.shutdown(wait=True, cancel_futures=True)
        if self._disk is not None:
            self._disk.close()

    def _submit(
        self,
        thread: ThreadPoolExecutor,
        copy: Callable[[int, Sequence[Pair]], HostCopied],
        step: int,
        pairs: Sequence[Pair],
    ) -> None:
        """Schedules copies in `thread`, to run once all pages saved so far are in host memory."""

        def run(saved: torch.cuda.Event | None) -> HostCopied:
            if saved is not None:
                saved.synchronize()
            return copy(step, pairs)

        self._jobs.append(thread.submit(run, self._saved))

    def _save(self, step: int, pairs: Sequence[Pair]) -> None:
        began = time.perf_counter()
        moves = self._moves((slot, page) for page, slot in pairs)
        self._saved = self._out.start(moves, to_pool=False)

        def saved(step: int, pairs: Sequence[Pair]) -> HostCopied:
            return HostCopied(step, "saved", len(pairs), time.perf_counter() - began)

        if self._saved is not None:
            torch.cuda.current_stream().wait_event(self._saved)
            self._submit(self._loader, saved, step, pairs)
        else:
            done: Future[HostCopied] = Future()
            done.set_result(saved(step, pairs))
            self._jobs.append(done)

    def _touch(self) -> None:
        """Touches all memory, since the first write to a memory page takes several times as long as
        later writes."""
        advise, end = ctypes.CDLL(None).madvise, self._memory.numel()
        for first in range(0, end, TOUCHED_BYTES):
            if self._closed:
                return
            at, size = self._memory.data_ptr() + first, min(TOUCHED_BYTES, end - first)
            advise(ctypes.c_void_p(at), ctypes.c_size_t(size), _MADV_POPULATE_WRITE)

    def _load(self, step: int, pairs: Sequence[Pair]) -> HostCopied:
        began = time.perf_counter()
        in_memory = [pair for pair in pairs if pair[0] < self._memory_pages]
        self._back.copy(self._moves(in_memory), to_pool=True)
        on_disk = [pair for pair in pairs if pair[0] >= self._memory_pages]
        bad = tuple(slot for slot, page in on_disk if not self._read(slot, page))
        return HostCopied(step, "loaded", len(pairs), time.perf_counter() - began, bad)

    def _read(self, slot: int, page: int) -> bool:
        assert self._disk is not None
        disk_slot = slot - self._memory_pages
        if self._pool_bytes is not None:
            return self._disk.read(disk_slot, self._page(self._pool_bytes, page))
        through = self._memory_pages
        if not self._disk.read(disk_slot, self._page(self._bytes, through)):
            return False
        self._back.copy(self._moves([(through, page)]), to_pool=True)
        return True

    def _spill(self, step: int, pairs: Sequence[Pair]) -> HostCopied:
        assert self._disk is not None
        began, bad = time.perf_counter(), []
        for slot, to in pairs:
            if not self._disk.write(to - self._memory_pages, self._page(self._bytes, slot)):
                bad.append(to)
        return HostCopied(step, "spilled", len(pairs), time.perf_counter() - began, tuple(bad))

    def _page(self, memory: memoryview, number: int) -> memoryview:
        return memory[number * self._page_bytes : (number + 1) * self._page_bytes]

    def _moves(self, pairs: Iterable[Pair]) -> list[Move]:
        """Copies for (slot, page) pairs; neighbours on both sides are joined into one."""
        size, moves = self._page_bytes, list[Move]()
        for slot, page in sorted(pairs):
            at, first = slot * size, page * size
            if moves and (moves[-1][0] + moves[-1][2], moves[-1][1] + moves[-1][2]) == (at, first):
                moves[-1] = (*moves[-1][:2], moves[-1][2] + size)
            else:
                moves.append((at, first, size))
        return moves


def _pin(memory: Tensor) -> None:
    """Pins memory in place: torch's own pinned memory is rounded up to a power of two."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
    if int(error):
        raise MemoryError(f"{memory.numel() >> 20} MiB cannot be pinned (CUDA error {error})")


class HostCacheRunner:
    """A runner whose steps copy pages to the host tier and back."""

    def __init__(self, runner: StepLauncher, cache: HostCache) -> None:
        self._runner = runner
        self._cache = cache

    def forward(self, batch: Batch) -> SampledTokens:
        """See `StepRunner`."""
        return self.launch(batch).land()

    def launch(self, batch: Batch) -> LandingStep:
        """See `StepLauncher`."""
        self._cache.begin(batch)
        return _CopyingStep(self._runner.launch(batch), batch, self._cache)


class _CopyingStep:
    """A step whose results also report copies."""

    def __init__(self, step: LandingStep, batch: Batch, cache: HostCache) -> None:
        self._step = step
        self._wait_seconds = IDLE_SECONDS if batch.mode is ForwardMode.IDLE else 0.0
        self._cache = cache

    def land(self) -> SampledTokens:
        result = self._step.land()
        copied = self._cache.ended(self._wait_seconds)
        return msgspec.structs.replace(result, copied=copied) if copied else result
