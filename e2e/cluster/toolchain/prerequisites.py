"""Installs the Debian packages that the harness needs and this machine lacks, and says so. On
systems other than Debian and Ubuntu, it names the missing packages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Step

# `sbin` too, which is not on everybody's PATH.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


@dataclass(frozen=True)
class Package:
    """A Debian package, and a command or file that it provides. Other packages may provide that too
    (Docker brings a containerd and a runc), and installing over them would break them."""

    name: str
    provides: str

    @property
    def present(self) -> bool:
        return shutil.which(self.provides, path=SEARCH_PATH) is not None


NODE_PACKAGES = (
    Package("runc", "runc"),
    Package("containernetworking-plugins", "/usr/lib/cni/ptp"),
    Package("iptables", "iptables"),
    Package("conntrack", "conntrack"),
    Package("iproute2", "ip"),
    Package("openssl", "openssl"),
)
IMAGE_PACKAGES = (
    Package("buildah", "buildah"),
    Package("debootstrap", "debootstrap"),
)
MONITORING_PACKAGES = (Package("prometheus", "/usr/bin/prometheus"),)
"""Packages for the tests of dashboards and alerts. prometheus brings `promtool` along."""


def require_packages(packages: Sequence[Package], command: str) -> None:
    """Installs nothing. Raises ClusterError with the `command` that does, where one is missing."""
    missing = [one.name for one in packages if not one.present]
    if missing:
        raise ClusterError(f"not installed: {', '.join(missing)}; run `{command}` first")


def ensure_packages(packages: Sequence[Package]) -> None:
    """Installs the missing ones of `packages`. Raises ClusterError where that is impossible."""
    missing = [one.name for one in packages if not one.present]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"needed and not found: {', '.join(missing)}; install them, then retry")
    if os.geteuid() != 0:
        raise ClusterError(f"run as root, or first: apt-get install {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with Step(f"Installing Debian packages: {' '.join(missing)}") as step:
        step.detail("apt-get update")
        run(["apt-get", "update", "--quiet"], env=environment)
        step.detail("apt-get install")
        install = ["apt-get", "install", "--quiet", "--yes", "--no-install-recommends"]
        run([*install, *missing], env=environment)
