"""What the node image for kind is made of."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tomllib
from ipaddress import ip_address, ip_network
from pathlib import Path

from e2e.cluster.bare.containerd import tar_of, write_image
from e2e.cluster.kind_node.image import POD_SUBNET, RESOLV_CONF, node_files
from e2e.cluster.loaded_images import archive_images
from e2e.cluster.providers.kind import KUBELET_PATCH


def test_its_scripts_need_nothing_else_of_the_tree(tmp_path: Path) -> None:
    for path, content in node_files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    listed = "from e2e.cluster.kind_node.entrypoint import programs; print(*programs())"
    words = [sys.executable, "-S", "-c", listed]
    environment = {"PYTHONPATH": str(tmp_path / "kind" / "python")}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("containerd", "kubelet", "kube-proxy"))


def test_what_kind_and_kubeadm_look_for_is_where_they_look() -> None:
    files = node_files()
    containerd = tomllib.loads(files["etc/containerd/config.toml"])
    assert containerd["grpc"]["address"] == "/run/containerd/containerd.sock"
    assert "resolvConf: /kind/resolv.conf" in KUBELET_PATCH
    assert "kind/resolv.conf" in files


def test_pods_ask_the_node_for_other_names() -> None:
    network = json.loads(node_files()["etc/cni/net.d/10-sluice.conflist"])
    ((addresses,),) = network["plugins"][0]["ipam"]["ranges"]
    assert addresses == {"subnet": POD_SUBNET}
    assert ip_address(RESOLV_CONF.split()[1]) == ip_network(POD_SUBNET)[1]


def test_one_image_has_several_names_and_a_link_for_each_program(tmp_path: Path) -> None:
    layer = tar_of({"bin/all": (b"binary", 0o755)}, {"bin/one": "all", "bin/two": "all"})
    write_image(tmp_path / "image.tar", ["local/one:1", "local/two:1"], layer, {})
    assert set(archive_images(tmp_path / "image.tar")) == {"local/one:1", "local/two:1"}
    with tarfile.open(tmp_path / "image.tar") as archive:
        stream = archive.extractfile("layer.tar")
        assert stream is not None
        with tarfile.open(fileobj=stream) as files:
            links = {entry.name: entry.linkname for entry in files if entry.issym()}
    assert links == {"bin/one": "all", "bin/two": "all"}
