"""Removes the control groups of a node that has ended, in v1, v2 and hybrid hierarchies.

`init.py` and the kubelet make them. They hold no process any more when this is called.
"""

from __future__ import annotations

import time
from pathlib import Path

from e2e.cluster.errors import ClusterError

EMPTY_SECONDS = 10.0
POLL_SECONDS = 0.05


def hierarchies(mountinfo: str) -> list[Path]:
    """Mount points of cgroup file systems in the text of /proc/self/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        fields, _, filesystem = line.partition(" - ")
        if filesystem.split(" ")[0] in ("cgroup", "cgroup2"):
            found.append(Path(fields.split(" ")[4]))
    return found


def cgroup_folders(name: str) -> list[Path]:
    """The cgroup of that name in each hierarchy where it exists."""
    mounted = hierarchies(Path("/proc/self/mountinfo").read_text())
    return [folder for base in mounted if (folder := base / name).is_dir()]


def remove_cgroups(name: str) -> None:
    """Removes the cgroup and all below it. Raises ClusterError if one stays busy."""
    for top in cgroup_folders(name):
        below = sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True)
        for folder in [*below, top]:
            _remove(folder)


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + EMPTY_SECONDS
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:
            # The kernel lets go of a killed process's cgroup a moment after the process.
            if time.monotonic() > deadline:
                raise ClusterError(f"cgroup {folder} stays busy: {error}") from error
        time.sleep(POLL_SECONDS)
