"""A platform team installs the chart into a new cluster, upgrades it, and uninstalls it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.choose import choose_cluster, start_cluster
from e2e.cluster.provider import Cluster
from e2e.first_token import stream_answer
from e2e.install import NAMESPACE as OPERATOR_NAMESPACE
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.chart import Chart
from e2e.stories.service import KIND, MODEL, NAMESPACE, Service
from e2e.up import QUESTIONS, SERVICE, apply_sample, await_sample, deliver_images

OPERATOR = ("deployment/sluice-operator", "-n", OPERATOR_NAMESPACE)
PODS = ("pods", "-n", NAMESPACE, "-l", f"serving.sluice.dev/service={SERVICE}", "-o", "name")
LEFT = (
    "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,services,deployments,pods,"
    "secrets,configmaps,networkpolicies,poddisruptionbudgets"
)


@pytest.fixture
def empty_cluster() -> Iterator[Cluster]:
    """A cluster without Sluice, separate from that of the other stories."""
    environment = {**os.environ, "SLUICE_CLUSTER": "sluice-chart"}
    if choose_cluster(environment).kind == "current":
        pytest.skip("a cluster that is somebody's own is not emptied")
    try:
        yield start_cluster(environment)
    finally:
        choose_cluster(environment).down()


def answer(cluster: Cluster) -> str:
    """The small model's answer to the question of `make up`."""
    with reach(cluster, NAMESPACE, SERVICE) as url:
        return "".join(stream_answer(url, MODEL, QUESTIONS[MODEL], max_tokens=64))


@pytest.mark.full
def test_from_install_to_uninstall(empty_cluster: Cluster, tmp_path: Path) -> None:
    kubectl = Kubectl(empty_cluster)
    chart = Chart(empty_cluster, deliver_images(empty_cluster), tmp_path)
    service = Service(kubectl, SERVICE)
    copied = QUESTIONS[MODEL].removeprefix("copy: ")

    chart.install()
    assert "Succeeded" in chart.test()
    apply_sample(kubectl, MODEL)
    await_sample(kubectl)
    assert answer(empty_cluster) == copied
    pods = kubectl.run("get", *PODS)

    chart.upgrade("settings.logLevel=DEBUG")
    assert "Succeeded" in chart.test()
    assert "DEBUG" in kubectl.run("get", *OPERATOR, "-o", "yaml")
    await_sample(kubectl)
    assert kubectl.run("get", *PODS) == pods, "an upgrade of the operator restarts nothing"

    chart.uninstall()
    assert answer(empty_cluster) == copied
    service.delete()
    service.wait_until_children_are_gone()
    kubectl.run("delete", "namespace", OPERATOR_NAMESPACE)
    kubectl.run("delete", "crd", KIND, "enginepools.serving.sluice.dev")
    assert "sluice" not in kubectl.run("get", LEFT, "-A", "-o", "name")
