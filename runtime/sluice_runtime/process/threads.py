"""Number of threads that a process's libraries may use: as configured, else from the cgroup's CPU
quota.

Used by launcher and engine. Starts no thread, and imports nothing that takes time: see `launch`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from sluice_runtime.process import cgroups

_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)


def thread_environment(threads: int | None, root: Path = cgroups.ROOT) -> Mapping[str, str]:
    """The libraries' variables for `threads`, or for the processors this process may use."""
    return dict.fromkeys(_VARIABLES, str(threads or processors(root)))


def configured_threads(path: Path) -> int | None:
    """`threads` of the EngineConfig in a file that is not checked yet; None if it has none that can
    be read."""
    with suppress(OSError, ValueError, AttributeError):
        threads = json.loads(path.read_bytes()).get("threads")
        return threads if isinstance(threads, int) else None
    return None


def processors(root: Path = cgroups.ROOT) -> int:
    """Number of whole processors that the cgroups' quotas and the affinity allow; at least 1.

    It is rounded down: with one thread more than the quota allows, the kernel throttles all
    threads.
    """
    allowed = float(len(os.sched_getaffinity(0)))
    for folder in cgroups.folders(root, "cpu"):
        if (quota := _quota(folder)) is not None:
            allowed = min(allowed, quota)
    return max(1, int(allowed))


def _quota(folder: Path) -> float | None:
    """Number of processors that the quota in `folder` allows; None without a limit (`max` in
    version 2, -1 in version 1)."""
    fields = cgroups.text(folder / "cpu.max").split()
    if len(fields) == 2 and fields[0] != "max":
        return int(fields[0]) / int(fields[1])
    quota = cgroups.number(folder / "cpu.cfs_quota_us")
    period = cgroups.number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None
