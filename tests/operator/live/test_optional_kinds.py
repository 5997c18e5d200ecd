"""PodMonitors: none where the kind is not installed, and kept like every child where it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from sluice_operator.kube.kinds import INFERENCE_SERVICE, POD_MONITOR, Kind

from tests.operator.harness.cluster import Cluster
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat, settled

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
DEFINITION = Kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"
)
NAMES = {"chat-engine", "chat-router"}


@pytest.fixture
async def pod_monitors(cluster: Cluster) -> AsyncIterator[None]:
    """The kind, with any content."""
    group, _, version = POD_MONITOR.api_version.partition("/")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": POD_MONITOR.kind, "plural": POD_MONITOR.plural}
    name = f"{POD_MONITOR.plural}.{group}"
    served = {"name": version, "served": True, "storage": True}
    body = {
        "apiVersion": DEFINITION.api_version,
        "kind": DEFINITION.kind,
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": names,
            "versions": [served | {"schema": {"openAPIV3Schema": schema}}],
        },
    }
    await cluster.create(DEFINITION, body)
    await cluster.until_served(POD_MONITOR)
    yield
    await cluster.delete(DEFINITION, None, name)


async def test_without_the_kind_a_service_is_reconciled_all_the_same(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)
    log = operator.log.read_text()
    assert log.count("optional kind left out") == 1
    assert "reconcile failed" not in log


async def test_where_the_kind_is_installed_its_objects_are_made_and_kept(
    cluster: Cluster, namespace: str, pod_monitors: None, start_operator: StartOperator
) -> None:
    start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await cluster.until(POD_MONITOR, namespace, lambda found: found.keys() == NAMES)
    await comes_to_rest(cluster, namespace)
    await cluster.delete(POD_MONITOR, namespace, "chat-engine")
    await cluster.until(POD_MONITOR, namespace, lambda found: found.keys() == NAMES)
    await comes_to_rest(cluster, namespace)
