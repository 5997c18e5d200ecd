"""A child that the API server refuses: told where a person looks, made once the way is clear."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sluice_operator.kube.kinds import DEPLOYMENT, ENGINE_POOL, INFERENCE_SERVICE, Kind

from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest, until_told
from tests.operator.harness.scenery import chat, settled

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
QUOTA = Kind("v1", "ResourceQuota", "resourcequotas")


async def allow_deployments(cluster: Cluster, namespace: str, count: int) -> None:
    """A quota, counted by hand: its controller does not run here."""
    hard, used = {"count/deployments.apps": str(count)}, {"count/deployments.apps": "0"}
    body = {
        "apiVersion": QUOTA.api_version,
        "kind": QUOTA.kind,
        "metadata": {"name": "small", "namespace": namespace},
        "spec": {"hard": hard},
    }
    await cluster.create(QUOTA, body)
    status = {"status": {"hard": hard, "used": used}}
    await cluster.patch(QUOTA, namespace, "small", status, "status")


def says(kind: str, name: str, status: str) -> Callable[[State], bool]:
    """Whether a condition says ApplyFailed, in the words of the API server."""

    def check(found: State) -> bool:
        told = condition(found[name], kind) if name in found else {}
        return (
            (told.get("status"), told.get("reason")) == (status, "ApplyFailed")
            and "exceeded quota: small" in told["message"]
            and "/deployments/chat-" in told["message"]
        )

    return check


@pytest.mark.parametrize(("allowed", "refused"), [(0, "chat-router"), (1, "chat-mixed-")])
async def test_a_refused_child_is_told_in_the_conditions_and_made_when_it_may_be(
    cluster: Cluster, namespace: str, start_operator: StartOperator, allowed: int, refused: str
) -> None:
    await allow_deployments(cluster, namespace, allowed)
    operator = start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    if allowed:
        await cluster.until(ENGINE_POOL, namespace, says("Ready", "chat-mixed", "False"))
    found = await cluster.until(INFERENCE_SERVICE, namespace, says("Ready", "chat", "False"))
    assert refused in condition(found["chat"], "Ready")["message"]
    found = await cluster.until(INFERENCE_SERVICE, namespace, says("Stalled", "chat", "True"))
    assert condition(found["chat"], "Reconciling")["status"] == "False"
    await until_told(cluster, namespace, "ApplyFailed")

    await cluster.delete(QUOTA, namespace, "small")
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 2)
    found = await cluster.until(INFERENCE_SERVICE, namespace, _is_under_way)
    assert settled()(found)
    await comes_to_rest(cluster, namespace)
    assert operator.running


def _is_under_way(found: State) -> bool:
    service = found["chat"]
    stalled, ready = condition(service, "Stalled"), condition(service, "Ready")
    return bool(stalled["status"] == "False" and ready["reason"] != "ApplyFailed")
