"""Whether images can be mounted, asked of real API servers, as the operator may ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from sluice_operator.clock import SystemClock
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.kinds import DEPLOYMENT
from sluice_operator.probes.image_volumes import NAME, ImageVolumes

from e2e.cluster.controlplane_only import control_plane
from tests.operator.conftest import OPERATOR_NAMESPACE
from tests.operator.harness.cluster import Cluster

pytestmark = pytest.mark.apiserver


async def accepted(kubeconfig: Path, namespace: str) -> bool:
    cluster = Cluster(kubeconfig)
    try:
        client = ApiClient(cluster.transport, lambda verb, plural: None)
        found = await ImageVolumes(client, SystemClock(), namespace).accepted()
        assert not await cluster.list(DEPLOYMENT, namespace, "app.kubernetes.io/name=" + NAME), (
            "made"
        )
    finally:
        await cluster.close()
    return found


@pytest.mark.parametrize("on", [False, True])
async def test_an_api_server_says_whether_its_gate_is_on(
    on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with control_plane(feature_gates=f"ImageVolume={str(on).lower()}") as plane:
        assert await accepted(plane.kubeconfig, "default") is on
    assert not caplog.records


async def test_the_operators_own_rights_suffice(
    operator_kubeconfig: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await accepted(operator_kubeconfig, OPERATOR_NAMESPACE)
    assert not caplog.records, "a refusal is logged"
