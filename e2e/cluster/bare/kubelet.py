"""Configuration files of programs that run on each node: kubelet, kube-proxy and the DNS server.
Pure."""

from __future__ import annotations

import yaml

from e2e.cluster.bare.layout import Layout

CLUSTER_DOMAIN = "cluster.local"
PROXY_HEALTH_PORT = 10256
DNS_READY_PORT = 8181


def render_kubelet(layout: Layout) -> str:
    """KubeletConfiguration: own cgroup root, no swap check, room on a full disk, cgroup v1."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": layout.node_address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": layout.in_node(layout.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": layout.in_node(layout.pki / "kubelet.crt"),
            "tlsPrivateKeyFile": layout.in_node(layout.pki / "kubelet.key"),
            "containerRuntimeEndpoint": f"unix://{layout.in_node(layout.containerd_socket)}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{layout.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            # On by default since Kubernetes 1.35.
            "featureGates": {"ImageVolume": True},
            "oomScoreAdj": 0,
            "clusterDNS": [layout.node_address],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": "/dev/null",
            # A developer's disk is often nearly full; images must not be collected under a test.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        },
        sort_keys=False,
    )


def render_kube_proxy(layout: Layout) -> str:
    """KubeProxyConfiguration: iptables, and no change to the host's connection tracking."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "bindAddress": layout.node_address,
            "healthzBindAddress": f"{layout.node_address}:{PROXY_HEALTH_PORT}",
            "metricsBindAddress": "127.0.0.1:10249",
            "clientConnection": {
                "kubeconfig": layout.in_node(layout.pki / "kube-proxy.kubeconfig")
            },
            "clusterCIDR": layout.pod_subnet,
            "hostnameOverride": layout.name,
            "mode": "iptables",
            # Rules of a Service are written as soon as its pods are ready. By default, which is
            # what 0 means, that may take up to a second.
            "iptables": {"minSyncPeriod": "10ms"},
            "oomScoreAdj": 0,
            "conntrack": {"maxPerCore": 0},
        },
        sort_keys=False,
    )


def render_corefile(layout: Layout) -> str:
    """Corefile with the cluster's names and nothing else: the node cannot reach another DNS
    server."""
    return f"""\
.:53 {{
    bind {layout.node_address}
    errors
    ready {layout.node_address}:{DNS_READY_PORT}
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {layout.in_node(layout.kubeconfig)}
        ttl 5
    }}
    cache 5
}}
"""
