"""What a bare node is described to run, without running it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import yaml

from e2e.cluster.bare.layout import Layout
from e2e.cluster.bare.node_description import command_lines, describe_node, files

LAYOUT = Layout("sluice", 0, Path("/var/lib/sluice/sluice"))
OTHER = Layout("other", 1, Path("/var/lib/sluice/other"))


def test_the_description_is_the_same_every_time_and_differs_between_builds() -> None:
    assert describe_node(LAYOUT, "node-1") == describe_node(LAYOUT, "node-1")
    assert describe_node(LAYOUT, "node-1") != describe_node(LAYOUT, "node-2")


def test_the_description_survives_json() -> None:
    described = describe_node(LAYOUT, "node-1")
    assert json.loads(json.dumps(described)) == described


def test_two_clusters_have_no_address_in_common() -> None:
    text = json.dumps(describe_node(OTHER, "node-1"))
    assert "198.18.0." not in text
    assert "198.18.4.2" in text


def test_programs_see_no_path_of_the_host_below_the_state_directory() -> None:
    words = [word for argv in command_lines(LAYOUT).values() for word in argv]
    assert not [word for word in words if str(LAYOUT.state) in word]
    assert not [text for text in files(LAYOUT).values() if str(LAYOUT.state) in text]


def test_the_kubelet_keeps_to_its_own_cgroup_and_accepts_old_kernels() -> None:
    kubelet = yaml.safe_load(files(LAYOUT)["config/kubelet.yaml"])
    assert kubelet["cgroupRoot"] == f"/{LAYOUT.cgroup}"
    assert kubelet["failCgroupV1"] is False
    assert kubelet["failSwapOn"] is False
    assert kubelet["clusterDNS"] == [LAYOUT.node_address]


def test_pods_may_mount_images() -> None:
    kubelet = yaml.safe_load(files(LAYOUT)["config/kubelet.yaml"])
    assert kubelet["featureGates"] == {"ImageVolume": True}
    assert "--feature-gates=ImageVolume=true" in command_lines(LAYOUT)["kube-apiserver"]


def test_the_proxy_follows_at_once() -> None:
    proxy = yaml.safe_load(files(LAYOUT)["config/kube-proxy.yaml"])
    # Its default of a second takes the place of a zero.
    assert proxy["iptables"]["minSyncPeriod"] == "10ms"


def test_containerd_is_configured_in_valid_toml() -> None:
    config = tomllib.loads(files(LAYOUT)["config/containerd.toml"])
    cri = config["plugins"]["io.containerd.cri.v1.runtime"]
    assert cri["restrict_oom_score_adj"] is True
    assert cri["cni"]["conf_dir"] == "/run/sluice/config/cni"
    shim = cri["containerd"]["runtimes"]["runc"]["runtime_path"]
    assert shim == "/run/sluice/bin/containerd-shim-runc-v2"
    assert config["grpc"]["address"] == "/run/sluice/containerd.sock"


def test_pods_get_addresses_of_the_cluster_by_a_routed_link() -> None:
    network = json.loads(files(LAYOUT)["config/cni/10-sluice.conflist"])
    link = network["plugins"][0]
    assert link["type"] == "ptp"
    assert link["ipam"]["ranges"] == [[{"subnet": LAYOUT.pod_subnet}]]


def test_every_request_is_audited_once_and_before_its_answer() -> None:
    policy = yaml.safe_load(files(LAYOUT)["config/audit-policy.yaml"])
    assert policy["rules"] == [{"level": "Metadata"}]
    assert "ResponseComplete" not in policy["omitStages"]
    assert "--audit-log-mode=blocking" in command_lines(LAYOUT)["kube-apiserver"]


def test_nodes_are_authorized_as_nodes() -> None:
    apiserver = command_lines(LAYOUT)["kube-apiserver"]
    assert "--authorization-mode=Node,RBAC" in apiserver
    assert sum(word.startswith("--authorization-mode") for word in apiserver) == 1
