"""At rest: over several resyncs, and across a restart, the API server is asked and not told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sluice_operator.kube.kinds import INFERENCE_SERVICE, POD, SECRET, SERVICE_CHILDREN

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.conftest import OPERATOR_USER
from tests.operator.harness.audit import AuditLog
from tests.operator.harness.cluster import Cluster
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.proxy import Seen, proxying
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat_that_serves

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
RESYNCS = 3
LISTINGS = RESYNCS * len((INFERENCE_SERVICE, *SERVICE_CHILDREN, POD))
"""A resync compares every watched kind with what the API server has."""


async def test_the_audit_log_shows_no_write_over_resyncs_and_a_restart(
    plane: ApiServer,
    cluster: Cluster,
    namespace: str,
    operator_kubeconfig: Path,
    start_operator: StartOperator,
    tmp_path: Path,
) -> None:
    async with proxying(operator_kubeconfig, tmp_path) as (proxy, kubeconfig):
        settings = {"KUBECONFIG": str(kubeconfig), "SLUICE_RESYNC_SECONDS": "0.3"}
        operator = start_operator(**settings)
        await chat_that_serves(cluster, namespace)
        await comes_to_rest(cluster, namespace)
        assert "chat-handover" in await cluster.list(SECRET, namespace)

        audit = AuditLog(plane.audit_log)
        for _ in range(2):
            proxy.seen.clear()
            await proxy.until(resyncs)
            assert await operator.terminate() == 0
            operator = start_operator(**settings)
        await proxy.until(resyncs)
        assert audit.writes_by(OPERATOR_USER, namespace) == []
        callers = {call.user for call in audit.calls() if call.namespace == namespace}
        assert OPERATOR_USER in callers, "it has been working"
        assert proxy.writes() == []


def resyncs(seen: list[Seen]) -> bool:
    return sum(each.is_resync for each in seen) >= LISTINGS
