"""Installs what the harness needs and this machine lacks, and says so. Debian and Ubuntu only;
elsewhere it names what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Step


@dataclass(frozen=True)
class Package:
    """A Debian package, and a file that is there once it is installed."""

    name: str
    provides: str


NODE_PACKAGES = (
    Package("containerd", "/usr/bin/containerd"),
    Package("runc", "/usr/sbin/runc"),
    Package("containernetworking-plugins", "/usr/lib/cni/ptp"),
    Package("iptables", "/usr/sbin/iptables"),
    Package("conntrack", "/usr/sbin/conntrack"),
    Package("iproute2", "/usr/sbin/ip"),
    Package("openssl", "/usr/bin/openssl"),
)
IMAGE_PACKAGES = (
    Package("buildah", "/usr/bin/buildah"),
    Package("debootstrap", "/usr/sbin/debootstrap"),
)


def ensure_packages(packages: Sequence[Package]) -> None:
    """Installs those whose file is missing. Raises ClusterError where that cannot be done."""
    missing = [one.name for one in packages if not os.path.lexists(one.provides)]
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
