"""The directory below which bare clusters live: which exist, which number each has, and a lock.

A cluster is a folder with a file `number`, which picks its addresses. Knows nothing of processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.bare.layout import MAXIMUM_CLUSTERS, Layout
from e2e.cluster.bare.network import is_routed
from e2e.cluster.errors import ClusterError
from e2e.cluster.locks import lock


def state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """SLUICE_STATE, else /var/lib/sluice."""
    return Path(environment.get("SLUICE_STATE") or "/var/lib/sluice")


def known_layout(root: Path, name: str) -> Layout | None:
    """The layout of a cluster that exists, running or not."""
    number = root / name / "number"
    if not number.exists():
        return None
    return Layout(name, int(number.read_text()), root / name)


def remaining_layout(root: Path, name: str) -> Layout:
    """The layout of a cluster to clean up, even if it got no number, or its folder was deleted."""
    return known_layout(root, name) or Layout(name, 0, root / name)


def claim_layout(root: Path, name: str) -> Layout:
    """The cluster's layout; a new cluster gets the first free number. The caller
    holds the lock."""
    known = known_layout(root, name)
    if known is not None:
        return known
    taken = {int(file.read_text()) for file in root.glob("*/number")}
    for number in range(MAXIMUM_CLUSTERS):
        layout = Layout(name, number, root / name)
        if number not in taken and not is_routed(layout.network):
            layout.state.mkdir(exist_ok=True)
            partial = layout.state / "number.partial"
            partial.write_text(str(number))
            partial.rename(layout.state / "number")
            return layout
    raise ClusterError(f"all {MAXIMUM_CLUSTERS} cluster networks of 198.18.0.0/15 are in use")


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Allows one `up` or `down` at a time. The root exists inside, and goes at the end if it is
    empty."""
    descriptor = _lock(root)
    try:
        yield
    finally:
        if not any(root.iterdir()):
            root.rmdir()
        os.close(descriptor)


def _lock(root: Path) -> int:
    while True:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        lock(descriptor, f"another `up` or `down` ({root})")
        # The former holder may have removed the folder while we waited: then this locks nothing.
        if root.exists() and os.path.samestat(os.fstat(descriptor), root.stat()):
            return descriptor
        os.close(descriptor)
