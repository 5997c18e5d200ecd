"""`make e2e-gpu` runs on a cluster with GPUs that was named, and says what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from e2e import on_gpus
from e2e.cluster.errors import ClusterError
from e2e.on_gpus import current_with_gpus, gpu_nodes, main


def node(name: str, gpus: str | None, **spec: Any) -> dict[str, Any]:
    allocatable = {"cpu": "8"} | ({"nvidia.com/gpu": gpus} if gpus else {})
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable}, "spec": spec}


def test_nodes_count_that_have_gpus_and_take_pods() -> None:
    nodes = [node("a", "2"), node("b", None), node("c", "0"), node("d", "8", unschedulable=True)]
    assert gpu_nodes([*nodes, {"metadata": {"name": "e"}}]) == {"a": 2}


@pytest.mark.parametrize("cluster", ["", "bare", "kind"])
def test_a_cluster_that_was_not_named_is_refused(cluster: str) -> None:
    with pytest.raises(ClusterError, match=f"^CLUSTER={cluster}: allowed is current, .*e2e-gpu"):
        current_with_gpus({"CLUSTER": cluster})


def test_a_cluster_without_gpus_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoGpus:
        def __init__(self, environment: object) -> None: ...
        def up(self) -> None: ...

    class Found:
        def __init__(self, cluster: object) -> None: ...
        def get(self, *words: str) -> dict[str, Any]:
            return {"items": [node("a", None)]}

    monkeypatch.setattr(on_gpus, "CurrentCluster", NoGpus)
    monkeypatch.setattr(on_gpus, "Kubectl", Found)
    monkeypatch.setenv("CLUSTER", "current")
    assert main() == 1
    assert "error: no node of the current cluster has nvidia.com/gpu" in capsys.readouterr().err
