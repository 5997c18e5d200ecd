"""The memory that host and cgroups grant this process, and settings of its libraries and of the
garbage collector. Processors are in `sluice_runtime.process.threads`.

Reads /proc and /sys/fs/cgroup (versions 1 and 2) below `root`; decides nothing.
"""

from __future__ import annotations

import ctypes
import gc
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_runtime.process import cgroups

UNLIMITED_BYTES: Final = 1 << 60
"""Limit from which memory counts as unlimited: without a limit, cgroup version 1 writes a number of
this order."""

LIBRARY_VARIABLES: Final = {"GOMP_SPINCOUNT": "2000"}
"""Variables for libgomp, whose threads spin for milliseconds at each barrier by default. If
processors are shared or throttled by a quota, the thread they wait for may not be running: steps
took ten times as long."""

_ALLOCATIONS: Final = 10_000
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_BUFFER_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Memory:
    """Memory in bytes. `total`: the limit; `available`: what can still be allocated without
    swapping."""

    total: int
    available: int


def memory(root: Path = cgroups.ROOT) -> Memory:
    """Memory of the machine or, if lower, that its cgroups grant the process."""
    info = _meminfo(root / "proc/meminfo")
    total, available = info["MemTotal"], info["MemAvailable"]
    for folder, limit_file, usage_file in _memory_folders(root):
        limit, usage = cgroups.number(folder / limit_file), cgroups.number(folder / usage_file)
        if limit is not None and usage is not None and limit < UNLIMITED_BYTES:
            reclaimable = _page_cache(folder / "memory.stat")
            total = min(total, limit)
            available = min(available, limit - usage + reclaimable)
    return Memory(total, max(0, available))


def set_library_variables() -> None:
    """Sets variables that torch's libraries read once, so call it before torch is imported. Values
    that the user has set are kept."""
    for name, value in LIBRARY_VARIABLES.items():
        os.environ.setdefault(name, value)


def collect_garbage_rarely() -> None:
    """Makes the garbage collector skip all objects made so far; call it once everything is loaded.
    Steps make hardly any reference cycles, so the collector runs after about twenty full steps'
    allocations instead of three."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 10, 10)


def keep_freed_memory() -> None:
    """Tells glibc to reuse large buffers: by default each step's activations are unmapped, and
    mapped again page by page in the next one. Does nothing with another C library.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_BUFFER_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _LARGEST_BUFFER_BYTES)


def _memory_folders(root: Path) -> list[tuple[Path, str, str]]:
    versions = (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    )
    folders = cgroups.folders(root, "memory")
    return [(folder, *names) for folder in folders for names in versions]


def _page_cache(path: Path) -> int:
    """Bytes of cached files, active ones included: weight files become active because they are read
    twice, ahead and for conversion."""
    pairs = (line.split() for line in cgroups.text(path).splitlines())
    return sum(int(pair[1]) for pair in pairs if pair[0] in ("active_file", "inactive_file"))


def _meminfo(path: Path) -> dict[str, int]:
    """Entries of /proc/meminfo in bytes, by name; the file counts in kB."""
    entries = (line.split(":", 1) for line in path.read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, value in entries}
