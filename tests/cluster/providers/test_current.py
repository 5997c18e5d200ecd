"""The cluster of the user's kubeconfig: what it needs to be given."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import up
from e2e.cluster.choose import choose_cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.providers import current
from e2e.cluster.providers.current import CurrentCluster


def test_a_missing_kubeconfig_is_named() -> None:
    with pytest.raises(ClusterError, match="/nowhere"):
        choose_cluster({"KUBECONFIG": "/nowhere", "CLUSTER": "current"})


@pytest.mark.parametrize("registry", [None, "https://registry.example/team", "a/b:tag", "Upper/a"])
def test_the_current_cluster_asks_for_a_registry_before_anything_is_built(
    registry: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without kubectl on this machine even its context would have to wait for a build."""
    (tmp_path / "config").touch()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("CLUSTER", "current")
    monkeypatch.delenv("REGISTRY", raising=False)
    if registry is not None:
        monkeypatch.setenv("REGISTRY", registry)
    monkeypatch.setattr(current, "run", pytest.fail)
    monkeypatch.setattr(current, "kubectl_command", pytest.fail)
    assert up.main() == 1
    said = capsys.readouterr().err
    assert "REGISTRY=registry.example.com/team make up CLUSTER=current" in said
    assert registry is None or f"REGISTRY={registry}" in said


@pytest.mark.parametrize("registry", ["localhost:5000", "someone", "ghcr.io/team/sluice/"])
def test_the_current_cluster_pulls_from_the_registry_that_is_named(
    registry: str, tmp_path: Path
) -> None:
    (tmp_path / "config").touch()
    environment = {"KUBECONFIG": str(tmp_path / "config"), "REGISTRY": registry}
    assert CurrentCluster(environment).registry == registry.rstrip("/")
