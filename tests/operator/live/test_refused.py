"""A child that the API server refuses: told where a person looks, made once the way is clear."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    JOB,
    POD,
    Kind,
    Manifest,
)
from sluice_operator.probes.refused_pods import REFUSED_SECONDS

from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest, until_told
from tests.operator.harness.scenery import chat, settled

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
QUOTA = Kind("v1", "ResourceQuota", "resourcequotas")
HARD = {
    "deployments": "count/deployments.apps", "limited_cpu": "limits.cpu",
    "limited_memory": "limits.memory", "cpu": "requests.cpu", "memory": "requests.memory",
}  # fmt: skip


async def allow(cluster: Cluster, namespace: str, **hard: str) -> None:
    """A quota, counted by hand: its controller does not run here. Names are those of `HARD`."""
    amounts = {HARD[name]: amount for name, amount in hard.items()}
    body = {
        "apiVersion": QUOTA.api_version,
        "kind": QUOTA.kind,
        "metadata": {"name": "small", "namespace": namespace},
        "spec": {"hard": amounts},
    }
    await cluster.create(QUOTA, body)
    status = {"status": {"hard": amounts, "used": dict.fromkeys(amounts, "0")}}
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
    await allow(cluster, namespace, deployments=str(allowed))
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


def _stalls(status: str) -> Callable[[State], bool]:
    def check(found: State) -> bool:
        return "chat" in found and condition(found["chat"], "Stalled").get("status") == status

    return check


async def test_a_job_whose_pod_a_quota_refuses_is_told_and_takes_less_when_it_is_told_to(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    """No controller makes pods here, so that nobody but the operator can say why there is none."""
    amounts = {"limited_memory": "4Gi", "cpu": "4", "memory": "4Gi"}
    await allow(cluster, namespace, limited_cpu="1", **amounts)
    start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace, model={"uri": "hf://org/name"}))
    found = await cluster.until(INFERENCE_SERVICE, namespace, _stalls("True"), 3 * REFUSED_SECONDS)
    for kind in ("Stalled", "ModelAvailable", "Ready"):
        told = condition(found["chat"], kind)
        assert told["reason"] == "PodRefused", kind
        assert "exceeded quota: small, requested: limits.cpu=2" in told["message"], kind
    assert await cluster.list(POD, namespace) == {}
    await until_told(cluster, namespace, "PodRefused")

    (before,) = await cluster.list(JOB, namespace)
    less = {"spec": {"model": {"resources": {"limits": {"cpu": "500m"}}}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", less)
    found = await cluster.until(INFERENCE_SERVICE, namespace, _stalls("False"))
    assert condition(found["chat"], "ModelAvailable")["reason"] == "ResolvingModel"
    jobs = await cluster.until(JOB, namespace, lambda jobs: len(jobs) == 1 and before not in jobs)
    (job,) = jobs.values()
    await cluster.create(POD, _pod_of(job))


async def test_a_quota_of_all_that_pods_may_say_admits_a_download_by_default(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    await allow(
        cluster, namespace, limited_cpu="100", limited_memory="200Gi", cpu="100", memory="200Gi"
    )
    start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace, model={"uri": "hf://org/name"}))
    jobs = await cluster.until(JOB, namespace, lambda jobs: len(jobs) == 1)
    (job,) = jobs.values()
    await cluster.create(POD, _pod_of(job))


def _pod_of(job: Manifest) -> Manifest:
    """As the Job's controller makes it."""
    template, meta = job["spec"]["template"], job["metadata"]
    metadata = {"name": meta["name"], "namespace": meta["namespace"]}
    return {
        "apiVersion": POD.api_version, "kind": POD.kind, "spec": template["spec"],
        "metadata": metadata | {"labels": template["metadata"]["labels"]},
    }  # fmt: skip
