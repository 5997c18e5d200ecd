"""Provider `kind`: a cluster in a container of Docker or Podman. Its image is ours where no image
registry answers.

The host has no route to pods and Services here: `kubectl port-forward` is the way in.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

import yaml

from e2e.cluster.command import run, succeeds
from e2e.cluster.errors import ClusterError, CommandFailedError, NoNodeImageError
from e2e.cluster.kind_node import image as node_image
from e2e.cluster.loaded_images import are_loaded, present_images
from e2e.cluster.progress import Step, say
from e2e.cluster.provider import Status
from e2e.cluster.toolchain.binaries import ensure_binaries
from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.golang import ensure_go
from e2e.images.base import registry_answers

ENGINES = ("docker", "podman")
KIND_MODULE = "sigs.k8s.io/kind@v0.30.0"
OFFICIAL_NODE = "kindest/node"
READY_TIMEOUT = "180s"
KUBELET_PATCH = """\
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
oomScoreAdj: 0
resolvConf: /kind/resolv.conf
"""
# What kind has to know of our node: it brings its own network and kube-proxy, and has no systemd.
OWN_NODE = {
    "kind": "Cluster",
    "apiVersion": "kind.x-k8s.io/v1alpha4",
    "featureGates": {"ImageVolume": True},
    "networking": {"disableDefaultCNI": True, "kubeProxyMode": "none"},
    "kubeadmConfigPatches": [KUBELET_PATCH],
}


def running_engine() -> str | None:
    """The first container engine whose daemon answers; a client alone is not enough."""
    return next((one for one in ENGINES if shutil.which(one) and succeeds([one, "info"])), None)


class KindCluster:
    """One kind cluster, by name."""

    kind = "kind"
    registry = None

    def __init__(self, name: str, engine: str | None) -> None:
        if engine is None:
            raise ClusterError("kind needs Docker or Podman, and neither answers here")
        self._name = name
        self._engine = engine
        self._state = cache_directory() / f"kind-{name}"

    @property
    def kubeconfig(self) -> Path:
        return self._state / "admin.kubeconfig"

    @property
    def own_node(self) -> bool:
        """Whether its node is one of ours, or would be: nothing can be pulled here."""
        words = [self._engine, "container", "inspect", "--format={{.Config.Image}}", self._node]
        try:
            return run(words).startswith(node_image.NAME)
        except CommandFailedError:
            return not self._has_official_node()

    def up(self) -> None:
        if self._exists() and not self._usable():
            self._kind("delete", "cluster", f"--name={self._name}")
        if not self._exists():
            self._create()
        self._kind("export", "kubeconfig", f"--name={self._name}", *self._kubeconfig_flag())

    def down(self) -> None:
        if not self._exists() and not self._state.exists():
            say(f"There is no kind cluster {self._name}: nothing to remove.")
            return
        with Step(f"Removing the kind cluster {self._name}"):
            self._kind("delete", "cluster", f"--name={self._name}", *self._kubeconfig_flag())
            if succeeds([self._engine, "network", "inspect", self._network]):
                run([self._engine, "network", "rm", self._network])
            shutil.rmtree(self._state, ignore_errors=True)

    def status(self) -> Status:
        running = self._exists()
        details = {"kubeconfig": str(self.kubeconfig), "engine": self._engine} if running else {}
        return Status(self.kind, self._name, running=running, details=details)

    def present_images(self) -> Collection[str]:
        return present_images(self._ctr())

    def load_image(self, archive: Path) -> None:
        if not are_loaded(self._ctr(), archive):
            self._kind("load", "image-archive", str(archive), f"--name={self._name}")

    def kubectl_argv(self, *words: str) -> list[str]:
        return [*kubectl_command(), f"--kubeconfig={self.kubeconfig}", *words]

    @property
    def _node(self) -> str:
        return f"{self._name}-control-plane"

    @property
    def _network(self) -> str:
        """Name of the cluster's own network. kind's default network is shared by all clusters and
        never removed."""
        return f"kind-{self._name}"

    def _ctr(self) -> list[str]:
        """containerd's client, in the one node."""
        return [self._engine, "exec", self._node, "ctr", "--namespace=k8s.io"]

    def _create(self) -> None:
        if self._has_official_node():
            try:
                return self._create_with()
            except CommandFailedError as error:
                if "failed to pull image" not in error.output:
                    raise
        try:
            image = node_image.ensure_node_image(self._engine)
        except ClusterError as error:
            raise NoNodeImageError(
                f"kind cannot pull {OFFICIAL_NODE}, and no node image can be made here: {error}"
            ) from error
        self._state.mkdir(parents=True, exist_ok=True)
        config = self._state / "kind.yaml"
        config.write_text(yaml.safe_dump(OWN_NODE))
        return self._create_with(f"--image={image}", f"--config={config}")

    def _create_with(self, *more: str) -> None:
        self._state.mkdir(parents=True, exist_ok=True)
        with Step(f"Creating the kind cluster {self._name} with {self._engine}"):
            words = [f"--name={self._name}", f"--wait={READY_TIMEOUT}", *more]
            self._kind("create", "cluster", *words, *self._kubeconfig_flag())

    def _has_official_node(self) -> bool:
        """Whether kind may have its own image: pulled already, or from a registry that answers."""
        images = [self._engine, "image", "ls", "--quiet", OFFICIAL_NODE]
        return bool(run(images).strip()) or registry_answers()

    def _exists(self) -> bool:
        return self._name in self._kind("get", "clusters").split()

    def _usable(self) -> bool:
        """Whether it was finished and its API server answers: after an interrupted `up` or a reboot
        that may not be so."""
        if not self.kubeconfig.exists():  # what kind writes last
            return False
        try:
            self._kind("export", "kubeconfig", f"--name={self._name}", *self._kubeconfig_flag())
            run(self.kubectl_argv("get", "--raw=/readyz", "--request-timeout=20s"))
        except CommandFailedError:
            return False
        return True

    def _kubeconfig_flag(self) -> list[str]:
        return [f"--kubeconfig={self.kubeconfig}"]

    def _kind(self, *words: str) -> str:
        network = f"KIND_EXPERIMENTAL_{self._engine.upper()}_NETWORK"
        own = {"KIND_EXPERIMENTAL_PROVIDER": self._engine, network: self._network}
        environment = {**os.environ, **own}
        return run([ensure_kind(), *words], env=environment)


def ensure_kind() -> Path:
    """kind as installed, else built from its public module into the cache."""
    installed = shutil.which("kind")
    if installed:
        return Path(installed)
    folder = cache_directory() / KIND_MODULE.replace("/", "-")
    if not (folder / "kind").exists():
        with Step(f"Building {KIND_MODULE} (about a minute)"):
            run([ensure_go(), "install", KIND_MODULE], env={**os.environ, "GOBIN": str(folder)})
    return folder / "kind"


def kubectl_command() -> list[str]:
    """kubectl as installed, else our own build."""
    return [shutil.which("kubectl") or str(ensure_binaries().program("kubectl"))]
