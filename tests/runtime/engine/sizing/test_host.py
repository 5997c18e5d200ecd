"""Memory as cgroups of both versions grant them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sluice_runtime.engine.sizing.host import Memory, memory

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(
        tmp_path,
        "proc/meminfo",
        f"MemTotal: {8 * GIB >> 10} kB\nMemAvailable: {6 * GIB >> 10} kB\n",
    )
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_without_limits_the_machine_counts(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory.max", "max\n")
    assert memory(root) == Memory(8 * GIB, 6 * GIB)


def test_version_2_in_a_container(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    write(root, "sys/fs/cgroup/memory.current", f"{GIB}\n")
    files = f"inactive_file {GIB // 4}\nactive_file {GIB // 4}\n"
    write(root, "sys/fs/cgroup/memory.stat", f"anon 1\n{files}")
    assert memory(root) == Memory(2 * GIB, GIB + GIB // 2)


def test_version_2_the_tightest_group_above_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/kubepods/pod1/c1\n")
    write(root, "sys/fs/cgroup/kubepods/pod1/memory.max", f"{3 * GIB}\n")
    write(root, "sys/fs/cgroup/kubepods/pod1/memory.current", f"{GIB}\n")
    write(root, "sys/fs/cgroup/kubepods/pod1/c1/memory.max", "max\n")
    assert memory(root) == Memory(3 * GIB, 2 * GIB)


def test_version_1(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/box\n2:cpu,cpuacct:/box\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{(1 << 63) - 4096}\n")
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n")
    write(root, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", f"{4 * GIB}\n")
    write(root, "sys/fs/cgroup/memory/box/memory.usage_in_bytes", f"{GIB}\n")
    assert memory(root) == Memory(4 * GIB, 3 * GIB)
