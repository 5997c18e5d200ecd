"""What the host grants this process: memory and processors, by cgroup where there is one.

Reads /proc and /sys/fs/cgroup (versions 1 and 2) below `root`; decides nothing.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

UNLIMITED_BYTES: Final = 1 << 60
"""Version 1 writes a number of this order where there is no limit."""

LIBRARY_VARIABLES: Final = {"GOMP_SPINCOUNT": "2000"}
"""libgomp's threads spin for milliseconds at each barrier by default. Where processors are shared
or throttled by a quota, the thread they wait for is not running: steps took ten times as long."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_BUFFER_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Memory:
    """Bytes. `total`: the limit, `available`: what can still be taken without swapping."""

    total: int
    available: int


def memory(root: Path = Path("/")) -> Memory:
    """The tightest of the machine's memory and the limits of the process's cgroups."""
    info = _meminfo(root / "proc/meminfo")
    total, available = info["MemTotal"], info["MemAvailable"]
    for folder, limit_file, usage_file in _memory_folders(root):
        limit, usage = _number(folder / limit_file), _number(folder / usage_file)
        if limit is not None and usage is not None and limit < UNLIMITED_BYTES:
            reclaimable = _stat(folder / "memory.stat", "inactive_file")
            total = min(total, limit)
            available = min(available, limit - usage + reclaimable)
    return Memory(total, max(0, available))


def processors(root: Path = Path("/")) -> int:
    """Whole processors that the cgroup's quota and the affinity allow; 1 at least."""
    allowed = float(len(os.sched_getaffinity(0)))
    for folder in _cgroup_folders(root, "cpu"):
        quota = _quota(folder)
        if quota is not None:
            allowed = min(allowed, quota)
    return max(1, int(allowed))


def set_library_variables() -> None:
    """Before torch is loaded: what its libraries read once. The user's own values stay."""
    for name, value in LIBRARY_VARIABLES.items():
        os.environ.setdefault(name, value)


def keep_freed_memory() -> None:
    """Tells glibc to reuse large buffers: by default each step's activations are unmapped, and
    mapped again page by page in the next one. Does nothing with another C library.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_BUFFER_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _LARGEST_BUFFER_BYTES)


def _quota(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()
    if len(words) == 2 and words[0] != "max":
        return int(words[0]) / int(words[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _memory_folders(root: Path) -> list[tuple[Path, str, str]]:
    versions = (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    )
    folders = _cgroup_folders(root, "memory")
    return [(folder, *names) for folder in folders for names in versions]


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """The process's own group and all above it: the tightest limit holds."""
    mount = root / "sys/fs/cgroup"
    found = [mount, mount / controller]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mount / controller if controllers else mount
        parts = [part for part in path.split("/") if part]
        found += [base.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _stat(path: Path, key: str) -> int:
    pairs = (line.split() for line in _text(path).splitlines())
    return next((int(pair[1]) for pair in pairs if pair[0] == key), 0)


def _meminfo(path: Path) -> dict[str, int]:
    """Bytes by name; the file counts in kB."""
    entries = (line.split(":", 1) for line in path.read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, value in entries}
