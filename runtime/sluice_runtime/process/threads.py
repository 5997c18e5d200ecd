"""Number of threads that a process's libraries may use: as configured, else from the cgroup's CPU
quota.

Used by launcher and engine. Starts no thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sluice_contract.base import ConfigError

from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.process import cgroups

_LIMIT: Final = "OMP_THREAD_LIMIT"
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


def check_thread_limit(threads: int, environment: Mapping[str, str]) -> None:
    """Checks that OpenMP may start all threads: the kernels' threads synchronise in every layer, so
    none may be missing.

    Raises:
        InvalidConfigError: OMP_THREAD_LIMIT is lower.
    """
    limit = environment.get(_LIMIT, "")
    if limit.strip().isdecimal() and int(limit) < threads:
        allowed = f"at least {threads} (threads), or leaving it out"
        raise InvalidConfigError(str(ConfigError(_LIMIT, limit, allowed)))


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
