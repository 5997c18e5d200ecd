"""PID 1 of our node image for kind, where the official one has systemd: cgroups and mounts, then
containerd, kubelet and kube-proxy, kept running. kind does the rest by `docker exec`, above all
`kubeadm init`, which writes what the kubelet and kube-proxy wait for here.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from e2e.cluster.bare.init import UNIFIED, Program, Supervisor, join_cgroup

# One of the lines that kind takes for a node that has started.
STARTED: Final = "detected cgroup v1"
# kind has the kubelet put all pods below it.
CGROUP: Final = "kubelet"
ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}
# The control plane's images have to be there first: a kubelet that misses one tries to pull it.
KUBELET: Final = """
for archive in /kind/images/*.tar; do
    until ctr --namespace k8s.io images import "$archive"; do sleep 0.2; done
done
until [ -e /var/lib/kubelet/config.yaml ] && [ -e /etc/kubernetes/kubelet.conf ]; do sleep 0.2; done
. /var/lib/kubelet/kubeadm-flags.env
exec kubelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf \\
    $KUBELET_KUBEADM_ARGS
"""
KUBE_PROXY: Final = """
until [ -e /etc/kubernetes/admin.conf ]; do sleep 0.2; done
exec kube-proxy --kubeconfig=/etc/kubernetes/admin.conf --proxy-mode=iptables \\
    --iptables-min-sync-period=10ms --conntrack-max-per-core=0 --oom-score-adj=0
"""


def programs() -> list[Program]:
    """What the node runs; none waits for another's start."""
    command_lines = {
        "containerd": ["/usr/local/bin/containerd"],
        "kubelet": ["/bin/sh", "-uc", KUBELET],
        "kube-proxy": ["/bin/sh", "-uc", KUBE_PROXY],
    }
    return [Program(name, argv, f"/var/log/{name}.log") for name, argv in command_lines.items()]


def leave_root_cgroup() -> None:
    """Moves this process out of the root cgroup: in cgroup v2 it passes controllers on only while
    it holds no process."""
    if (UNIFIED / "cgroup.controllers").exists():
        (UNIFIED / "init").mkdir(exist_ok=True)
        (UNIFIED / "init" / "cgroup.procs").write_text("0")


def main() -> None:
    leave_root_cgroup()
    join_cgroup(CGROUP)
    # Volumes mounted later must reach the containers that ask for it.
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    # kubeadm's static pods mount it, and the kubelet would make a folder of it.
    Path("/run/xtables.lock").touch()
    os.makedirs("/var/log", exist_ok=True)
    print(STARTED, flush=True)
    Supervisor(programs(), ENVIRONMENT).run()


if __name__ == "__main__":
    main()
