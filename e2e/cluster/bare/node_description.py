"""Everything a bare node runs, as one value: programs, their command lines, their files. Pure.

`init.py` runs it. Two equal values mean an unchanged node, which is how a second `up` knows that
there is nothing to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.cluster.bare import containerd, controlplane, kubelet
from e2e.cluster.bare.certs import Certificate
from e2e.cluster.bare.layout import IN_NODE, Layout

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/run",
}
ETCD_URL = "http://127.0.0.1:2379"
ETCD_PEER_URL = "http://127.0.0.1:2380"
API_PORT = 6443


def describe_node(layout: Layout, build: str) -> dict[str, Any]:
    """The content of `node.json`. `build` names the programs, so that other programs restart the
    node."""
    return {
        "cgroup": layout.cgroup,
        "state": str(layout.state),
        "inNode": str(IN_NODE),
        "build": build,
        "environment": ENVIRONMENT,
        "files": files(layout),
        "programs": [
            {"name": name, "argv": argv, "log": layout.in_node(layout.logs / f"{name}.log")}
            for name, argv in command_lines(layout).items()
        ],
    }


def files(layout: Layout) -> dict[str, str]:
    """Configuration files: path below the state directory → content."""
    return {
        "config/audit-policy.yaml": controlplane.audit_policy(),
        "config/containerd.toml": containerd.render_config(
            layout.in_node(layout.containerd_socket),
            layout.in_node(layout.programs),
            layout.in_node(layout.state / "config" / "cni"),
        ),
        "config/cni/10-sluice.conflist": containerd.render_network(layout.pod_subnet),
        "config/kubelet.yaml": kubelet.render_kubelet(layout),
        "config/kube-proxy.yaml": kubelet.render_kube_proxy(layout),
        "config/Corefile": kubelet.render_corefile(layout),
    }


def command_lines(layout: Layout) -> dict[str, list[str]]:
    """Every program of the node. The order is that of starting; none waits for another."""
    config = _inside(layout, "config")
    return {
        "etcd": controlplane.etcd_argv(
            _program(layout, "etcd"), Path("/var/lib/etcd"), ETCD_URL, ETCD_PEER_URL
        ),
        "kube-apiserver": _apiserver(layout),
        "containerd": [
            str(_program(layout, "containerd")),
            "--config",
            f"{config}/containerd.toml",
        ],
        "kube-controller-manager": _controller_manager(layout),
        "kube-scheduler": controlplane.scheduler_argv(
            _program(layout, "kube-scheduler"), _kubeconfig(layout, "kube-scheduler"), "127.0.0.1"
        ),
        "kubelet": [
            str(_program(layout, "kubelet")),
            f"--config={config}/kubelet.yaml",
            f"--kubeconfig={_kubeconfig(layout, 'kubelet')}",
            f"--hostname-override={layout.name}",
            f"--node-ip={layout.node_address}",
        ],
        "kube-proxy": [str(_program(layout, "kube-proxy")), f"--config={config}/kube-proxy.yaml"],
        "coredns": [str(_program(layout, "coredns")), "-conf", f"{config}/Corefile"],
    }


def _apiserver(layout: Layout) -> list[str]:
    return controlplane.apiserver_argv(
        _program(layout, "kube-apiserver"),
        controlplane.ApiServerFiles(
            authority=_inside(layout, "pki/ca.crt"),
            serving=_certificate(layout, "kube-apiserver"),
            service_account_key=_inside(layout, "pki/service-account.key"),
            audit_policy=_inside(layout, "config/audit-policy.yaml"),
            audit_log=Path(layout.in_node(layout.audit_log)),
        ),
        etcd_url=ETCD_URL,
        address=layout.node_address,
        port=API_PORT,
        service_subnet=layout.service_subnet,
        extra={
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            # On by default since Kubernetes 1.35.
            "feature-gates": "ImageVolume=true",
            "kubelet-preferred-address-types": "InternalIP",
            "kubelet-certificate-authority": str(_inside(layout, "pki/ca.crt")),
            "kubelet-client-certificate": str(_inside(layout, "pki/kubelet-client.crt")),
            "kubelet-client-key": str(_inside(layout, "pki/kubelet-client.key")),
            **controlplane.aggregation_flags(
                _inside(layout, "pki/front-proxy-ca.crt"),
                _certificate(layout, controlplane.FRONT_PROXY),
            ),
        },
    )


def _controller_manager(layout: Layout) -> list[str]:
    return controlplane.controller_manager_argv(
        _program(layout, "kube-controller-manager"),
        _kubeconfig(layout, "kube-controller-manager"),
        _inside(layout, "pki/ca.crt"),
        _inside(layout, "pki/service-account.key"),
        ["*"],
        {
            "bind-address": "127.0.0.1",
            "allocate-node-cidrs": "true",
            "cluster-cidr": layout.pod_subnet,
            "service-cluster-ip-range": layout.service_subnet,
            "cluster-signing-cert-file": str(_inside(layout, "pki/ca.crt")),
            "cluster-signing-key-file": str(_inside(layout, "pki/ca.key")),
        },
    )


def _inside(layout: Layout, path: str) -> Path:
    return Path(layout.in_node(layout.state / path))


def _program(layout: Layout, name: str) -> Path:
    return Path(layout.in_node(layout.programs / name))


def _kubeconfig(layout: Layout, name: str) -> Path:
    return _inside(layout, f"pki/{name}.kubeconfig")


def _certificate(layout: Layout, name: str) -> Certificate:
    return Certificate(_inside(layout, f"pki/{name}.crt"), _inside(layout, f"pki/{name}.key"))
