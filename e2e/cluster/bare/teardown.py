"""Takes a bare cluster off this machine, in any state. Every step is harmless when there is nothing
to do, so the cluster of a killed run is removed in the same way."""

from __future__ import annotations

import shutil
from pathlib import Path

from e2e.cluster.bare.cgroups import remove_cgroups
from e2e.cluster.bare.layout import Layout
from e2e.cluster.bare.network import disconnect
from e2e.cluster.bare.node_process import end_node
from e2e.cluster.errors import ClusterError


def end(layout: Layout) -> None:
    """Ends the node. Its mounts and its network go with its namespaces; its data stays."""
    end_node(layout)
    disconnect(layout)
    remove_cgroups(layout.cgroup)


def remove(layout: Layout) -> None:
    """Ends the node and deletes its data."""
    end(layout)
    mounted = mounts_below(layout.state, Path("/proc/self/mountinfo").read_text())
    if mounted:
        # Our own mounts were private to the node. Deleting through other mounts would be a
        # disaster.
        raise ClusterError(f"still mounted, unmount first: {', '.join(map(str, mounted))}")
    finish_removal(layout)
    if layout.state.exists():
        layout.state.rename(_removed(layout))  # half deleted, it must not be started again
        finish_removal(layout)


def finish_removal(layout: Layout) -> None:
    """Deletes the remains of an interrupted `remove`."""
    if _removed(layout).exists():
        shutil.rmtree(_removed(layout))


def _removed(layout: Layout) -> Path:
    return layout.state.with_name(f"{layout.name}.removed")


def mounts_below(directory: Path, mountinfo: str) -> list[Path]:
    """Mount points at or below a directory, from the text of /proc/self/mountinfo."""
    points = (Path(line.split(" ")[4]) for line in mountinfo.splitlines())
    return [point for point in points if point.is_relative_to(directory)]
