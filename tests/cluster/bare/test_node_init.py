"""The node's PID 1: programs are kept running, orphans reaped; and the texts it and the tear-down
read."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from e2e.cluster.bare.cgroups import hierarchies
from e2e.cluster.bare.teardown import mounts_below

MOUNTINFO = """\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 22 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
40 22 0:30 / /var/lib/sluice/one/rootfs rw - overlay overlay rw
41 22 0:31 / /var/lib/sluice/onemore rw - tmpfs tmpfs rw
"""
SUPERVISE = """
import sys
from e2e.cluster.bare.init import Program, Supervisor
programs = [Program(name, ["/bin/sh", "-c", script], log) for name, script, log in {programs!r}]
Supervisor(programs, {{"PATH": "/usr/bin:/bin"}}).run()
print("left", flush=True)
"""


def supervise(programs: list[tuple[str, str, str]]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISE.format(programs=programs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_program_that_ends_is_started_again(tmp_path: Path) -> None:
    fifo = tmp_path / "starts"
    subprocess.run(["mkfifo", fifo], check=True)
    log = str(tmp_path / "log")
    with supervise([("worker", f"echo started > {fifo}; echo said; exit 3", log)]) as supervisor:
        # Opening a FIFO waits for its writer: each line is one start.
        assert [fifo.read_text() for _ in range(2)] == ["started\n", "started\n"]
        supervisor.send_signal(signal.SIGTERM)
        output, errors = supervisor.communicate()
    assert "worker ended with 3; starting it again" in errors
    assert output == "left\n"
    assert Path(log).read_text().startswith("said\nsaid\n")


def test_a_program_that_runs_is_left_alone(tmp_path: Path) -> None:
    fifo = tmp_path / "starts"
    subprocess.run(["mkfifo", fifo], check=True)
    steady = ("steady", f"echo $$ > {fifo}; exec sleep 60", str(tmp_path / "log"))
    with supervise([steady]) as supervisor:
        pid = int(fifo.read_text())
        supervisor.send_signal(signal.SIGTERM)
        output, errors = supervisor.communicate()
        # Outside a PID namespace nothing else ends it.
        subprocess.run(["kill", str(pid)], check=True)
    assert output == "left\n"
    assert errors == ""


def test_cgroup_hierarchies_are_read_from_the_mounts() -> None:
    assert hierarchies(MOUNTINFO) == [
        Path("/sys/fs/cgroup/memory"),
        Path("/sys/fs/cgroup/unified"),
    ]


def test_only_mounts_inside_the_directory_count() -> None:
    inside = mounts_below(Path("/var/lib/sluice/one"), MOUNTINFO)
    assert inside == [Path("/var/lib/sluice/one/rootfs")]
