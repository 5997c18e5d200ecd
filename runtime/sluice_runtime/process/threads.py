"""How many threads the libraries of a process may use: as configured, else the cgroup's CPU quota.

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
    """The kernels' threads synchronise in every layer, so OpenMP must provide all of them.

    Raises:
        InvalidConfigError: OMP_THREAD_LIMIT is lower.
    """
    limit = environment.get(_LIMIT, "")
    if limit.strip().isdecimal() and int(limit) < threads:
        allowed = f"at least {threads} (threads), or leaving it out"
        raise InvalidConfigError(str(ConfigError(_LIMIT, limit, allowed)))


def processors(root: Path = cgroups.ROOT) -> int:
    """Whole processors that the cgroups' quotas and the affinity allow; 1 at least.

    Rounded down: with one thread more than the quota allows, the kernel throttles all of them.
    """
    allowed = float(len(os.sched_getaffinity(0)))
    for folder in cgroups.folders(root, "cpu"):
        if (quota := _quota(folder)) is not None:
            allowed = min(allowed, quota)
    return max(1, int(allowed))


def _quota(folder: Path) -> float | None:
    """Processors; None without a limit, which version 2 writes as `max` and version 1 as -1."""
    fields = cgroups.text(folder / "cpu.max").split()
    if len(fields) == 2 and fields[0] != "max":
        return int(fields[0]) / int(fields[1])
    quota = cgroups.number(folder / "cpu.cfs_quota_us")
    period = cgroups.number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None
