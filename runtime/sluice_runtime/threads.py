"""How many threads the libraries of a process may use: the file's word, else the cgroup's quota.

Knows where the kernel writes the quota (cgroup v2 and v1); decides nothing else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
CGROUP_ROOT: Final = Path("/sys/fs/cgroup")


def thread_environment(threads: int | None) -> Mapping[str, str]:
    """The libraries' variables for `threads`, or for the CPUs this process may use."""
    count = threads or available_cpus(CGROUP_ROOT, len(os.sched_getaffinity(0)))
    return dict.fromkeys(_VARIABLES, str(count))


def available_cpus(cgroup_root: Path, affinity: int) -> int:
    """Whole CPUs: the cgroup's quota rounded up, at most those of the affinity mask, at least 1."""
    quota = _quota_v2(cgroup_root) or _quota_v1(cgroup_root)
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def _quota_v2(root: Path) -> float | None:
    words = _read(root / "cpu.max").split()
    return _ratio(words[0], words[1]) if len(words) == 2 else None


def _quota_v1(root: Path) -> float | None:
    folder = root / "cpu"
    return _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """CPUs; None without a limit, which v2 writes as `max` and v1 as -1."""
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
