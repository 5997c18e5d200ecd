"""Which provider is taken, what is installed, what is said meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e.cluster import choose, prerequisites
from e2e.cluster.bare import BareCluster
from e2e.cluster.choose import choose_cluster
from e2e.cluster.current import CurrentCluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.kind import KindCluster
from e2e.cluster.prerequisites import Package, ensure_packages
from e2e.cluster.progress import Step


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


def test_a_missing_kubeconfig_is_named() -> None:
    with pytest.raises(ClusterError, match="/nowhere"):
        choose_cluster({"KUBECONFIG": "/nowhere", "CLUSTER": "current"})


def test_packages_that_are_there_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "run", pytest.fail)
    ensure_packages([Package("coreutils", "ls"), Package("base-files", "/bin/sh")])


def test_missing_packages_are_named_to_who_may_not_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="absent-package"):
        ensure_packages([Package("absent-package", "/no/such/file")])


def test_a_step_says_when_it_begins_and_how_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with Step("Doing it"):
        pass
    with pytest.raises(ValueError, match="broken"), Step("Breaking it"):
        raise ValueError("broken")
    begun, done, _, failed = capsys.readouterr().err.splitlines()
    assert begun == "… Doing it"
    assert done.startswith("✓ Doing it")
    assert failed.startswith("✗ Breaking it")
