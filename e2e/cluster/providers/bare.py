"""Provider `bare`: a one-node Kubernetes of this machine's own processes, without Docker.

Composes the other modules: build, describe the node, start it, wait until it is ready, remove it.
Needs Linux and root.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from e2e.cluster.bare import containerd, network, node_process
from e2e.cluster.bare.identities import ensure_identities
from e2e.cluster.bare.layout import Layout
from e2e.cluster.bare.node_description import describe_node, files
from e2e.cluster.bare.readiness import cluster_checks, runtime_checks, wait_for
from e2e.cluster.bare.state import (
    claim_layout,
    known_layout,
    locked,
    remaining_layout,
    state_directory,
)
from e2e.cluster.bare.teardown import end, finish_removal, remove
from e2e.cluster.errors import ClusterError
from e2e.cluster.loaded_images import present_images
from e2e.cluster.progress import Step, say
from e2e.cluster.provider import Status
from e2e.cluster.toolchain.binaries import Binaries, ensure_binaries
from e2e.cluster.toolchain.containerd import ensure_containerd
from e2e.cluster.toolchain.prerequisites import NODE_PACKAGES, ensure_packages


class BareCluster:
    """One cluster, by name. Several may run at a time."""

    kind = "bare"
    registry = None

    def __init__(self, name: str, root: Path | None = None) -> None:
        self._name = name
        self._root = root or state_directory()

    @property
    def kubeconfig(self) -> Path:
        return self._root / self._name / "admin.kubeconfig"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log: one JSON line per request, written before the answer."""
        return self._root / self._name / "audit.log"

    def up(self) -> None:
        _require_root()
        ensure_packages(NODE_PACKAGES)
        binaries = ensure_binaries()
        runtime = ensure_containerd()
        with locked(self._root):
            layout = claim_layout(self._root, self._name)
            finish_removal(layout)
            admin = ensure_identities(layout)
            _ensure_node(layout, (binaries.directory, runtime))
            with Step("Waiting for the cluster to be ready") as step:
                wait_for(layout, runtime_checks(layout), step)
                _load_pause_image(layout, binaries)
                wait_for(layout, cluster_checks(layout, binaries.program("kubectl"), admin), step)

    def down(self) -> None:
        _require_root()
        with locked(self._root):
            layout = remaining_layout(self._root, self._name)
            if layout.state.exists() or node_process.find_node(layout) is not None:
                with Step(f"Removing the cluster {self._name}"):
                    remove(layout)
            else:
                remove(layout)  # a link or a cgroup may have outlived its folder
                say(f"There is no cluster {self._name}: nothing to remove.")

    def status(self) -> Status:
        layout = known_layout(self._root, self._name)
        pid = node_process.find_node(layout) if layout else None
        if layout is None or pid is None:
            return Status(self.kind, self._name, running=False, details={})
        details = {
            "API server": layout.api_url,
            "kubeconfig": str(layout.kubeconfig),
            "audit log": str(layout.audit_log),
            "logs": str(layout.logs),
            "enter the node": f"nsenter --target {pid} --mount --net --pid",
        }
        return Status(self.kind, self._name, running=True, details=details)

    def present_images(self) -> Collection[str]:
        return present_images(containerd.ctr_argv(self._running()))

    def load_image(self, archive: Path) -> None:
        containerd.import_image(self._running(), archive)

    def _running(self) -> Layout:
        layout = known_layout(self._root, self._name)
        if layout is None or node_process.find_node(layout) is None:
            raise ClusterError(f"the cluster {self._name} is not running; start it with `up`")
        return layout

    def kubectl_argv(self, *words: str) -> list[str]:
        kubectl = ensure_binaries().program("kubectl")
        return [str(kubectl), f"--kubeconfig={self.kubeconfig}", *words]


def _ensure_node(layout: Layout, builds: Sequence[Path]) -> None:
    """Starts the node, unless exactly this one is running. `builds`: folders of its programs."""
    build = " ".join(folder.name for folder in builds)
    described = json.dumps(describe_node(layout, build), indent=2)
    written = layout.node_file.read_text() if layout.node_file.exists() else ""
    if node_process.find_node(layout) is not None and written == described:
        return
    with Step(f"Starting the cluster {layout.name} ({layout.network})"):
        end(layout)
        for path, content in files(layout).items():
            file = layout.state / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        _place_programs(builds, layout.programs)
        layout.node_file.write_text(described)
        node_process.start_node(layout, lambda pid: network.connect(layout, pid))


def _place_programs(builds: Sequence[Path], target: Path) -> None:
    """Links or copies the programs into the node's own directory: the cache may lie where the node
    cannot see it."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for folder in builds:
        # Hard links cost no space where both are on one disk; a link of a link stays one.
        shutil.copytree(
            folder, target, symlinks=True, copy_function=_link_or_copy, dirs_exist_ok=True
        )


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _load_pause_image(layout: Layout, binaries: Binaries) -> None:
    archive = layout.state / "pause.tar"
    if not archive.exists():
        containerd.write_static_image(binaries.pause, containerd.PAUSE_IMAGE, archive)
    containerd.import_image(layout, archive)


def _require_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError("the bare cluster needs root: it makes namespaces, mounts and cgroups")
