"""Pages leave the pool and come back through memory and disk, byte for byte."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from pathlib import Path

import pytest
import torch
from sluice_runtime.engine import host_cache
from sluice_runtime.engine.host_cache import DiskPages, HostCache
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.scheduler.batch import Batch, ForwardMode, HostCopied, HostCopies
from sluice_runtime.scheduler.settings import HostPages

PAGES = 12


def pool() -> PagePool:
    pool = PagePool(KvShape(2, 2, 8, torch.bfloat16), PAGES, 4)
    pool.data.copy_(torch.randn(pool.data.shape))
    return pool


def copies(step: int, **pairs: tuple[tuple[int, int], ...]) -> Batch:
    return Batch(step, ForwardMode.IDLE, host_copies=HostCopies(**pairs))


def run(cache: HostCache, batch: Batch) -> tuple[HostCopied, ...]:
    cache.begin(batch)
    ended: tuple[HostCopied, ...] = ()
    while not ended or cache._jobs:
        ended += cache.ended(1.0)
    return ended


def test_pages_come_back_from_memory_and_from_disk(tmp_path: Path) -> None:
    pages = pool()
    before = pages.data.clone()
    cache = HostCache(pages, HostPages(4, 8), str(tmp_path))
    run(cache, copies(1, saved=((3, 0), (4, 1), (9, 3))))
    run(cache, copies(2, spilled=((0, 6), (3, 4))))
    pages.data.zero_()
    (loaded,) = run(cache, copies(3, loaded=((6, 1), (1, 2), (4, 0))))
    assert (loaded.step, loaded.kind, loaded.pages, loaded.bad_slots) == (3, "loaded", 3, ())
    for page, source in ((1, 3), (2, 4), (0, 9)):
        assert torch.equal(pages.data[page], before[source])
    assert not pages.data[3:].any()
    cache.close()


def test_pages_that_come_back_wait_for_none_that_move_to_disk(tmp_path: Path) -> None:
    pages = pool()
    cache = HostCache(pages, HostPages(4, 8), str(tmp_path))
    run(cache, copies(1, saved=((3, 0), (4, 1))))
    disk_is_slow = threading.Event()
    cache._spiller.submit(disk_is_slow.wait, 3.0)
    cache.begin(copies(2, spilled=((0, 6),)))
    cache.begin(copies(3, loaded=((1, 2),)))
    ended = cache.ended(1.0)
    assert [(copied.step, copied.kind) for copied in ended] == [(3, "loaded")]
    disk_is_slow.set()
    assert [copied.kind for copied in cache.ended(5.0)] == ["spilled"]
    cache.close()


def test_memory_is_backed_before_pages_are_saved_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_cache, "TOUCHED_BYTES", 8 * mmap.PAGESIZE)
    pages = pool()
    cache = HostCache(pages, HostPages(60 * mmap.PAGESIZE // pages.page_bytes))
    cache._spiller.submit(lambda: None).result()
    assert backed(cache) == 60
    cache.close()


def backed(cache: HostCache) -> int:
    """Pages of the system that the tier's memory has."""
    there = (ctypes.c_ubyte * (cache._memory.numel() // mmap.PAGESIZE))()
    at, size = ctypes.c_void_p(cache._memory.data_ptr()), ctypes.c_size_t(cache._memory.numel())
    assert ctypes.CDLL(None).mincore(at, size, there) == 0
    return sum(there)


def test_what_changed_on_disk_is_bad_and_what_did_not_is_not(tmp_path: Path) -> None:
    pages = pool()
    cache = HostCache(pages, HostPages(2, 4), str(tmp_path))
    run(cache, copies(1, saved=((0, 0), (1, 1))))
    run(cache, copies(2, spilled=((0, 2), (1, 3))))
    assert cache._disk is not None
    file, at = cache._disk._file.fileno(), pages.page_bytes + 5
    (byte,) = os.pread(file, 1, at)
    os.pwrite(file, bytes([byte ^ 1]), at)
    (loaded,) = run(cache, copies(3, loaded=((2, 5), (3, 6))))
    assert loaded.bad_slots == (3,)
    cache.close()


def test_a_file_that_was_cut_is_bad(tmp_path: Path) -> None:
    disk = DiskPages(str(tmp_path), 16)
    assert disk.write(1, memoryview(bytes(16)))
    os.ftruncate(disk._file.fileno(), 20)
    assert not disk.read(1, memoryview(bytearray(16)))
    disk.close()


def test_a_full_disk_takes_no_page(tmp_path: Path) -> None:
    disk = DiskPages(str(tmp_path), 16)
    disk._file.close()
    disk._file = open("/dev/full", "w+b", buffering=0)  # noqa: SIM115
    assert not disk.write(0, memoryview(bytes(16)))
    disk.close()


def test_one_engine_at_a_time_uses_a_folder_and_begins_the_file_anew(tmp_path: Path) -> None:
    disk = DiskPages(str(tmp_path), 16)
    assert disk.write(3, memoryview(bytes(range(16))))
    with pytest.raises(InvalidConfigError, match=r"hostCacheFolder: .* no other engine uses"):
        DiskPages(str(tmp_path), 16)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == 64, "a volume's limit counts it"
    disk.close()
    again = DiskPages(str(tmp_path), 16)
    assert file.stat().st_size == 0
    again.close()


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"hostCacheFolder: .*No such file"):
        DiskPages(str(tmp_path / "none"), 16)
