"""The number of threads is the configured one, else the one that the CPU quota allows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sluice_runtime.process.threads import processors, thread_environment


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "150000 100000"}, 1),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "9900000 100000"}, 8),
        ({"kubepods/pod1/cpu.max": "300000 100000", "kubepods/cpu.max": "max 100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/box/cpu.cfs_quota_us": "500000", "cpu/box/cpu.cfs_period_us": "100000"}, 5),
    ],
)
def test_threads_follow_the_cgroups_quota(
    files: dict[str, str], count: int, tmp_path: Path
) -> None:
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    files["proc/self/cgroup"] = "2:cpu,cpuacct:/box\n0::/kubepods/pod1/c1"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert processors(tmp_path) == count
    assert set(thread_environment(None, tmp_path).values()) == {str(count)}


def test_configured_threads_are_set_for_every_library() -> None:
    environment = thread_environment(3)
    assert set(environment.values()) == {"3"}
    assert {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} <= environment.keys()
