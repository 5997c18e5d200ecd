"""An operator for every namespace, with the rights that the cluster-wide install gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.conftest import OPERATOR_USER
from tests.operator.harness.audit import AuditLog
from tests.operator.harness.cluster import NAMESPACE, Cluster
from tests.operator.harness.plane import OWN_PLANE
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat_that_serves

pytestmark = [pytest.mark.apiserver, OWN_PLANE]
StartOperator = Callable[..., OperatorProcess]


async def test_namespaces_are_served_whenever_they_were_made(
    plane: ApiServer, cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    audit = AuditLog(plane.audit_log)
    operator = start_operator(SLUICE_NAMESPACES="")
    await operator.leads(cluster)
    later = f"{namespace}-later"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": later}}
    await cluster.create(NAMESPACE, body)
    for where in (namespace, later):
        await chat_that_serves(cluster, where)
        await comes_to_rest(cluster, where, operator=namespace)
    refused = [call for call in audit.calls() if call.user == OPERATOR_USER and call.code == 403]
    assert refused == []
