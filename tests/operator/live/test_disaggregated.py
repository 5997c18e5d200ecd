"""A service with a pool for prefill and one for decode, on a real API server."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    POD_DISRUPTION_BUDGET,
    SECRET,
    SERVICE_CHILDREN,
    Manifest,
)

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.conftest import OPERATOR_USER
from tests.operator.harness.audit import AuditLog
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.proxy import Seen, proxying
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import (
    chat,
    chat_that_serves,
    is_ready,
    play_controllers,
    run_pods,
    settled,
    until_recorded,
)

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
DEPLOYMENTS: Final = 3
RESYNC_LISTINGS: Final = 3 * len((INFERENCE_SERVICE, *SERVICE_CHILDREN, POD))
"""Of three resyncs, each of which compares every watched kind."""
GARBAGE_COLLECTOR_SECONDS: Final = 60.0
"""It learns of new kinds every 30 seconds."""
NAME: Final = "chat-handover"
POOLS: Final = {"chat-prefill", "chat-decode"}


async def two_pools_that_serve(cluster: Cluster, namespace: str) -> Manifest:
    """A new service, once the running operator says that it is Ready, and has recorded its spec."""
    await cluster.create(INFERENCE_SERVICE, chat(namespace, prefill={}))
    await play_controllers(cluster, namespace, DEPLOYMENTS)
    service = (await cluster.until(INFERENCE_SERVICE, namespace, is_ready()))["chat"]
    await until_recorded(cluster, namespace)
    return service


async def key_of(cluster: Cluster, namespace: str) -> bytes:
    secret = await cluster.get(SECRET, namespace, NAME)
    return base64.b64decode(base64.b64decode(secret["data"]["key"]), validate=True)


async def test_from_apply_to_ready(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    service = await two_pools_that_serve(cluster, namespace)
    for part in ("PrefillReady", "DecodeReady", "RouterReady"):
        assert condition(service, part)["status"] == "True", part
    numbers = {role: each["summary"] for role, each in service["status"]["pools"].items()}
    assert numbers == {"prefill": "1/1", "decode": "1/1"}
    assert set(await cluster.list(ENGINE_POOL, namespace)) == POOLS
    budgets, policies = [
        set(await cluster.list(kind, namespace)) for kind in (POD_DISRUPTION_BUDGET, NETWORK_POLICY)
    ]
    assert budgets == POOLS | {"chat-router"}
    assert policies == budgets | {"chat-engine"}
    assert len(await key_of(cluster, namespace)) == 32
    secret = await cluster.get(SECRET, namespace, NAME)
    (owner,) = secret["metadata"]["ownerReferences"]
    assert owner["uid"] == service["metadata"]["uid"]


async def test_at_rest_no_secret_is_asked_for(
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
        await two_pools_that_serve(cluster, namespace)
        await comes_to_rest(cluster, namespace)
        audit = AuditLog(plane.audit_log)
        for _ in range(2):
            proxy.seen.clear()
            await proxy.until(resyncs)
            assert await operator.terminate() == 0
            operator = start_operator(**settings)
        await proxy.until(resyncs)
        assert audit.writes_by(OPERATOR_USER, namespace) == []
        assert proxy.writes() == []


def resyncs(seen: list[Seen]) -> bool:
    return sum(each.is_resync for each in seen) >= RESYNC_LISTINGS


def test_the_operator_never_reads_a_key(plane: ApiServer) -> None:
    groups = "--as-group=system:serviceaccounts"
    for verb, allowed in (("create", "yes"), ("get", "no"), ("list", "no"), ("delete", "no")):
        words = ("auth", "can-i", verb, "secrets", "-n", "default", f"--as={OPERATOR_USER}", groups)
        told = subprocess.run(plane.kubectl_argv(*words), capture_output=True, text=True)
        assert told.stdout.strip() == allowed, verb


async def test_a_key_that_was_deleted_is_made_again_once_a_pod_is_missing(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await two_pools_that_serve(cluster, namespace)
    before = await key_of(cluster, namespace)
    await cluster.delete(SECRET, namespace, NAME)
    name = next(each for each in await cluster.list(DEPLOYMENT, namespace) if "decode" in each)
    evicted = {"status": {"readyReplicas": 0, "availableReplicas": 0}}
    await cluster.patch(DEPLOYMENT, namespace, name, evicted, "status")
    await cluster.until(SECRET, namespace, lambda secrets: NAME in secrets)
    assert await key_of(cluster, namespace) != before


async def test_the_key_goes_with_its_service(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await two_pools_that_serve(cluster, namespace)
    await cluster.delete(INFERENCE_SERVICE, namespace, "chat")
    gone = partial(cluster.until, timeout_seconds=GARBAGE_COLLECTOR_SECONDS)
    await gone(SECRET, namespace, lambda secrets: NAME not in secrets)


async def test_both_pools_are_rolled_out_together(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    """The former pair keeps all its engines until the new one is complete in both pools."""
    start_operator()
    await two_pools_that_serve(cluster, namespace)
    former = set(await cluster.list(DEPLOYMENT, namespace))
    edit = {"spec": {"engine": {"pageSize": 32}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit)
    found = await cluster.until(DEPLOYMENT, namespace, lambda each: len(each) == DEPLOYMENTS + 2)
    assert former <= found.keys()
    await complete(cluster, namespace, next(n for n in found.keys() - former if "prefill" in n))

    def waits(services: State) -> bool:
        return bool(services["chat"]["status"]["rollout"]["reason"] == "WaitsForPool")

    await cluster.until(INFERENCE_SERVICE, namespace, waits)
    await comes_to_rest(cluster, namespace)
    found = await cluster.list(DEPLOYMENT, namespace)
    assert {each["spec"]["replicas"] for each in found.values()} == {1, 2}, "routers are two"
    assert len(found) == DEPLOYMENTS + 2

    await complete(cluster, namespace, next(n for n in found.keys() - former if "decode" in n))
    await cluster.until(DEPLOYMENT, namespace, lambda each: len(each) == DEPLOYMENTS)
    left = set(await cluster.list(DEPLOYMENT, namespace))
    assert left & former == {"chat-router"}


async def complete(cluster: Cluster, namespace: str, name: str) -> None:
    """Plays a Deployment of which every pod runs."""
    item = (await cluster.list(DEPLOYMENT, namespace))[name]
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    status = dict.fromkeys(counts, item["spec"]["replicas"])
    status["observedGeneration"] = item["metadata"]["generation"]
    await cluster.patch(DEPLOYMENT, namespace, name, {"status": status}, "status")


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_pool_is_scaled_in_the_spec(
    cluster: Cluster, namespace: str, start_operator: StartOperator, role: str
) -> None:
    start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace, prefill={}))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    number = {"replicas": 3}
    change = {"prefill": number} if role == "prefill" else number
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": change})
    await cluster.until(
        ENGINE_POOL, namespace, lambda found: found[f"chat-{role}"]["spec"]["replicas"] == 3
    )


async def test_a_mixed_service_is_split_while_it_serves(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await chat_that_serves(cluster, namespace)
    routers = await cluster.list(POD, namespace, "serving.sluice.dev/role=router")
    edit: Manifest = {"spec": {"prefill": {}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit)
    found = await cluster.until(DEPLOYMENT, namespace, lambda each: len(each) == DEPLOYMENTS + 1)
    service = (await cluster.until(INFERENCE_SERVICE, namespace, settled()))["chat"]
    await comes_to_rest(cluster, namespace)
    told = {kind: condition(service, kind)["status"] for kind in ("Ready", "MixedReady", "Updated")}
    assert told == {"Ready": "True", "MixedReady": "True", "Updated": "False"}
    assert (await cluster.list(DEPLOYMENT, namespace)).keys() == found.keys()

    before = found["chat-router"]["metadata"]["generation"]
    await play_controllers(cluster, namespace, DEPLOYMENTS + 1)
    await cluster.until(
        DEPLOYMENT,
        namespace,
        lambda each: each["chat-router"]["metadata"]["generation"] > before,
    )
    await complete(cluster, namespace, "chat-router")
    await comes_to_rest(cluster, namespace)
    assert set(await cluster.list(ENGINE_POOL, namespace)) == POOLS | {"chat-mixed"}

    for name in routers:
        await cluster.delete(POD, namespace, name)
    # The pods of the new routers, without one of which the former engines stay.
    await run_pods(cluster, namespace, "chat-router")
    await cluster.until(ENGINE_POOL, namespace, lambda pools: pools.keys() == POOLS)
    gone = partial(cluster.until, timeout_seconds=GARBAGE_COLLECTOR_SECONDS)
    await gone(DEPLOYMENT, namespace, lambda each: len(each) == DEPLOYMENTS)
    await comes_to_rest(cluster, namespace)
