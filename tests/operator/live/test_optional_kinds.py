"""PodMonitors and PrometheusRules: none where their kinds are not installed; kept like every child
where they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sluice_operator.kube.kinds import (
    INFERENCE_SERVICE,
    OPTIONAL_CHILDREN,
    POD_MONITOR,
    PROMETHEUS_RULE,
    Kind,
    Manifest,
)

from tests.operator.harness.cluster import Cluster
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.proxy import proxying, status
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat, settled

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
DEFINITION = Kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"
)
NAMES = {"chat-engine", "chat-router"}


@pytest.fixture
async def optional_kinds(cluster: Cluster) -> AsyncIterator[None]:
    """Both kinds, with any content."""
    for kind in OPTIONAL_CHILDREN:
        await cluster.create(DEFINITION, definition(kind))
    for kind in OPTIONAL_CHILDREN:
        await cluster.until_served(kind)
    yield
    names = {definition(kind)["metadata"]["name"] for kind in OPTIONAL_CHILDREN}
    for name in names:
        await cluster.delete(DEFINITION, None, name)
    # A deleted definition stays until the server has removed its objects.
    await cluster.until(DEFINITION, None, names.isdisjoint)


def definition(kind: Kind) -> Manifest:
    group, _, version = kind.api_version.partition("/")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": kind.kind, "plural": kind.plural}
    name = f"{kind.plural}.{group}"
    served = {"name": version, "served": True, "storage": True}
    return {
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


async def test_without_the_kind_a_service_is_reconciled_all_the_same(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)
    log = operator.log.read_text()
    assert log.count("optional kind left out") == len(OPTIONAL_CHILDREN)
    assert "reconcile failed" not in log


async def test_where_the_kind_is_installed_its_objects_are_made_and_kept(
    cluster: Cluster, namespace: str, optional_kinds: None, start_operator: StartOperator
) -> None:
    start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace, slo={"itlMilliseconds": 50}))
    await cluster.until(POD_MONITOR, namespace, lambda found: found.keys() == NAMES)
    await cluster.until(PROMETHEUS_RULE, namespace, lambda found: found.keys() == {"chat-slo"})
    await comes_to_rest(cluster, namespace)
    await cluster.delete(POD_MONITOR, namespace, "chat-engine")
    await cluster.until(POD_MONITOR, namespace, lambda found: found.keys() == NAMES)
    await comes_to_rest(cluster, namespace)
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": {"slo": None}})
    await cluster.until(PROMETHEUS_RULE, namespace, lambda found: not found)


async def test_where_its_objects_may_not_be_listed_the_kind_is_as_good_as_absent(
    cluster: Cluster,
    namespace: str,
    optional_kinds: None,
    operator_kubeconfig: Path,
    start_operator: StartOperator,
    tmp_path: Path,
) -> None:
    async with proxying(operator_kubeconfig, tmp_path) as (proxy, kubeconfig):
        proxy.spoil = lambda seen: (
            status(403, "Forbidden") if POD_MONITOR.plural in seen.path else None
        )
        operator = start_operator(KUBECONFIG=str(kubeconfig))
        await cluster.create(INFERENCE_SERVICE, chat(namespace, slo={"itlMilliseconds": 50}))
        await cluster.until(PROMETHEUS_RULE, namespace, lambda found: found.keys() == {"chat-slo"})
        await cluster.until(INFERENCE_SERVICE, namespace, settled())
        log = operator.log.read_text()
        assert log.count("no right to list it") == 1
        assert "reconcile failed" not in log
