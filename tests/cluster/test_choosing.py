"""Which provider gives the cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from e2e.cluster import choose
from e2e.cluster.__main__ import main
from e2e.cluster.choose import choose_cluster, start_cluster
from e2e.cluster.errors import ClusterError, NoNodeImageError
from e2e.cluster.providers.bare import BareCluster
from e2e.cluster.providers.current import CurrentCluster
from e2e.cluster.providers.kind import KindCluster


@pytest.fixture
def nothing(tmp_path: Path) -> dict[str, str]:
    """An environment that says nothing, on a machine without a cluster."""
    return {"SLUICE_STATE": str(tmp_path)}


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "running_engine", lambda: None)


@pytest.mark.usefixtures("no_engine")
def test_bare_is_taken_by_root_where_no_engine_runs(
    nothing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert isinstance(choose_cluster(nothing), BareCluster)


@pytest.mark.usefixtures("no_engine")
def test_without_engine_and_root_the_ways_out_are_named(
    nothing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="CLUSTER=current"):
        choose_cluster(nothing)


def test_kind_is_taken_where_an_engine_runs(
    nothing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "running_engine", lambda: "docker")
    assert isinstance(choose_cluster(nothing), KindCluster)


def test_an_engine_started_later_does_not_hide_a_bare_cluster(
    nothing: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "running_engine", lambda: "docker")
    (tmp_path / "sluice").mkdir()
    assert isinstance(choose_cluster(nothing), BareCluster)


@pytest.fixture
def no_node_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Docker answers and kind has no node; the bare cluster starts."""

    def fail(cluster: KindCluster) -> None:
        raise NoNodeImageError("kind cannot pull kindest/node: no buildah\nand more")

    monkeypatch.setattr(choose, "running_engine", lambda: "docker")
    monkeypatch.setattr(KindCluster, "up", fail)
    monkeypatch.setattr(BareCluster, "up", lambda cluster: (tmp_path / "sluice").mkdir())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    # Where clusters are looked for by those that are named.
    monkeypatch.setenv("SLUICE_STATE", str(tmp_path))


@pytest.mark.usefixtures("no_node_image")
def test_without_a_node_for_kind_the_cluster_is_bare_and_stays_so(
    nothing: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(start_cluster(nothing), BareCluster)
    said = capsys.readouterr().err
    assert said == "The cluster is a bare one: kind cannot pull kindest/node: no buildah\n"
    assert isinstance(choose_cluster(nothing), BareCluster), "what `down` and `kubectl` take"


@pytest.mark.usefixtures("no_node_image")
def test_kind_that_was_named_is_not_replaced(nothing: dict[str, str]) -> None:
    with pytest.raises(NoNodeImageError):
        start_cluster({**nothing, "CLUSTER": "kind"})


@pytest.mark.usefixtures("no_node_image")
def test_without_root_nothing_takes_the_place_of_kind(
    nothing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoNodeImageError):
        start_cluster(nothing)


@pytest.mark.usefixtures("no_engine")
def test_kind_without_an_engine_is_refused() -> None:
    with pytest.raises(ClusterError, match="Docker or Podman"):
        choose_cluster({"CLUSTER": "kind"})


@pytest.mark.usefixtures("no_engine")
def test_a_kubeconfig_alone_is_never_picked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    kubeconfig = tmp_path / "config"
    kubeconfig.touch()
    assert isinstance(choose_cluster({"KUBECONFIG": str(kubeconfig)}), BareCluster)
    asked = choose_cluster({"KUBECONFIG": f"{kubeconfig}:/other", "CLUSTER": "current"})
    assert isinstance(asked, CurrentCluster)
    assert asked.kubeconfig == kubeconfig


def test_an_unknown_provider_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(ClusterError, match="CLUSTER=k3s: allowed are bare, kind, current"):
        choose_cluster({"CLUSTER": "k3s"})


@pytest.mark.parametrize("words", [["kubeconfig"], ["kubectl", "get", "pods"]])
def test_without_a_cluster_the_way_to_one_is_named(
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path))
    cluster = KindCluster("sluice", "docker")
    monkeypatch.setattr("e2e.cluster.__main__.choose_cluster", lambda: cluster)
    monkeypatch.setattr(sys, "argv", ["e2e.cluster", *words])
    assert main() == 1
    told = capsys.readouterr()
    assert "`make up` first" in told.err
    assert not told.out
