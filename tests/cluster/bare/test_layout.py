"""Names and addresses of bare clusters."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_address
from itertools import pairwise
from pathlib import Path

import pytest

from e2e.cluster.bare.layout import MAXIMUM_CLUSTERS, Layout
from e2e.cluster.bare.state import claim_layout, known_layout, locked, state_directory
from e2e.cluster.errors import ClusterError

ROOT = Path("/var/lib/sluice")


def layout(number: int = 0, name: str = "sluice") -> Layout:
    return Layout(name, number, ROOT / name)


def test_addresses_of_a_cluster_lie_in_its_own_network() -> None:
    one = layout(65 - 2)
    network = IPv4Network(one.network)
    assert network.subnet_of(IPv4Network("198.18.0.0/15"))
    for address in (one.host_address, one.node_address, one.kubernetes_service):
        assert ip_address(address) in network
    for subnet in (one.pod_subnet, one.service_subnet):
        assert IPv4Network(subnet).subnet_of(network)


def test_no_two_clusters_share_an_address() -> None:
    networks = [IPv4Network(layout(number).network) for number in range(MAXIMUM_CLUSTERS)]
    assert len(set(networks)) == MAXIMUM_CLUSTERS
    assert all(not a.overlaps(b) for a, b in pairwise(networks))


def test_the_first_cluster_has_the_documented_addresses() -> None:
    one = layout()
    assert (one.host_address, one.node_address) == ("198.18.0.1", "198.18.0.2")
    assert (one.pod_subnet, one.service_subnet) == ("198.18.1.0/24", "198.18.2.0/24")
    assert one.kubernetes_service == "198.18.2.1"


def test_link_names_fit_the_kernel_and_differ_by_place() -> None:
    one, other = layout(name="a" * 32), Layout("a" * 32, 0, Path("/elsewhere") / ("a" * 32))
    assert len(one.link) <= 15
    assert one.link != other.link


@pytest.mark.parametrize("name", ["", "Upper", "-a", "a/b", "a" * 33])
def test_names_that_make_no_host_name_are_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="SLUICE_CLUSTER"):
        layout(name=name)


def test_a_state_directory_too_deep_for_sockets_is_refused() -> None:
    with pytest.raises(ClusterError, match="SLUICE_STATE"):
        Layout("sluice", 0, Path("/x" * 50))


def test_paths_are_translated_into_the_node() -> None:
    one = layout()
    assert one.in_node(one.pki / "ca.crt") == "/run/sluice/pki/ca.crt"
    with pytest.raises(ValueError, match="not in the subpath"):
        one.in_node(Path("/etc/passwd"))


def test_the_state_directory_follows_the_environment() -> None:
    assert state_directory({}) == ROOT
    assert state_directory({"SLUICE_STATE": "/elsewhere"}) == Path("/elsewhere")


def test_each_new_cluster_gets_a_number_of_its_own_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routed = {"198.18.4.0/22"}
    monkeypatch.setattr("e2e.cluster.bare.state.is_routed", lambda network: network in routed)
    monkeypatch.setattr("e2e.cluster.bare.layout.MAXIMUM_SOCKET_PATH", 1000)
    assert claim_layout(tmp_path, "first").number == 0
    assert claim_layout(tmp_path, "second").number == 2  # 1 is routed by somebody else
    assert claim_layout(tmp_path, "first").number == 0
    assert known_layout(tmp_path, "third") is None


def test_the_lock_makes_the_root_and_removes_it_when_empty(tmp_path: Path) -> None:
    root = tmp_path / "state"
    with locked(root):
        assert root.is_dir()
    assert not root.exists()
    with locked(root):
        (root / "cluster").mkdir()
    assert root.exists()
