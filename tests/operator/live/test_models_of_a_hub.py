"""A model of a hub on a real API server; the Job controller and kubelet are played by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    Manifest,
)

from e2e.cluster.controlplane_only import ApiServer
from tests.fetch.corporate import Authority
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest, until_told
from tests.operator.harness.scenery import chat, is_ready, play_controllers, until_recorded
from tests.operator.model_pods import COMMIT, ended_pod, resolved, said

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
TOKEN = {"name": "hub", "key": "token"}


def _on_a_hub(namespace: str, **more: Any) -> Manifest:
    model = {"uri": "hf://org/name", "tokenSecretRef": TOKEN, "cache": {"size": "1Gi"}}
    return chat(namespace, model=model, **more)


async def _ends(cluster: Cluster, namespace: str, task: str, code: int, message: str) -> Manifest:
    """The pod of the Job for `task` comes, and ends; the Job."""
    found = await cluster.until(
        JOB, namespace, lambda jobs: len(jobs) == 1 and f"-{task}-" in next(iter(jobs))
    )
    (job,) = found.values()
    pod = ended_pod(job, code, message)
    await cluster.create(POD, {key: value for key, value in pod.items() if key != "status"})
    status = {"status": pod["status"]}
    await cluster.patch(POD, namespace, pod["metadata"]["name"], status, "status")
    return job


def _says(kind: str, status: str, reason: str) -> Callable[[State], bool]:
    def check(found: State) -> bool:
        told = condition(found["chat"], kind)
        return (told.get("status"), told.get("reason")) == (status, reason)

    return check


async def test_from_apply_to_two_pools_that_share_one_download(
    cluster: Cluster, namespace: str, start_operator: StartOperator, plane: ApiServer
) -> None:
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    plane.kubectl("label", "namespace", namespace, restricted)
    start_operator()
    await cluster.create(INFERENCE_SERVICE, _on_a_hub(namespace, prefill={}))
    await _ends(cluster, namespace, "resolve", 0, resolved())
    job = await _ends(cluster, namespace, "fetch", 0, said("ModelFetched", COMMIT))
    assert job["spec"]["podFailurePolicy"]["rules"][0]["action"] == "FailJob"
    await play_controllers(cluster, namespace, 3)
    found = await cluster.until(INFERENCE_SERVICE, namespace, is_ready())
    model = found["chat"]["status"]["model"]
    assert (model["commit"], model["claim"]) == (COMMIT, "chat-model")
    pools = (await cluster.list(ENGINE_POOL, namespace)).values()
    assert [pool["spec"]["modelClaim"] for pool in pools] == ["chat-model"] * 2
    await cluster.until(JOB, namespace, lambda jobs: not jobs)
    assert list(await cluster.list(PERSISTENT_VOLUME_CLAIM, namespace)) == ["chat-model"]
    for reason in ("ResolvingModel", "ModelResolved", "FetchingModel", "ModelFetched"):
        await until_told(cluster, namespace, reason)
    await comes_to_rest(cluster, namespace)


async def test_adapters_come_beside_engines_that_serve(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    adapters = [{"name": "sql", "uri": "hf://org/sql@v1"}, {"name": "law", "uri": "hf://org/law"}]
    model = {"uri": "dummy://qwen3-tiny", "cache": {"claim": "cache"}, "adapters": adapters[:1]}
    start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace, model=model))
    await play_controllers(cluster, namespace)
    told = _says("AdaptersLoaded", "False", "FetchingAdapters")
    await cluster.until(INFERENCE_SERVICE, namespace, lambda s: is_ready()(s) and told(s))
    await until_recorded(cluster, namespace)
    before = sorted(await cluster.list(CONTROLLER_REVISION, namespace))
    job = await _ends(cluster, namespace, "adapter", 0, said("ModelFetched", COMMIT))
    assert "--adapter" in job["spec"]["template"]["spec"]["containers"][0]["args"]

    def is_loaded(found: State) -> bool:
        data = (found.get("chat-adapters") or {}).get("data") or {}
        return f"/mnt/adapters/cache/models--org--sql/snapshots/{COMMIT}" in str(data)

    await cluster.until(CONFIG_MAP, namespace, is_loaded)
    await until_told(cluster, namespace, "AdapterFetched")
    await cluster.until(JOB, namespace, lambda jobs: not jobs)
    patch = {"spec": {"model": {"adapters": adapters}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", patch)
    await _ends(cluster, namespace, "adapter", 2, said("AccessDenied", "gated"))
    named = _says("AdaptersLoaded", "False", "AccessDenied")
    found = await cluster.until(INFERENCE_SERVICE, namespace, lambda s: is_ready()(s) and named(s))
    assert [each["name"] for each in found["chat"]["status"]["adapters"]] == ["sql"]
    assert is_loaded(await cluster.list(CONFIG_MAP, namespace))
    assert sorted(await cluster.list(CONTROLLER_REVISION, namespace)) == before


async def test_a_failure_is_named_and_a_refresh_tries_again_behind_a_proxy(
    cluster: Cluster, namespace: str, start_operator: StartOperator, tmp_path: Path
) -> None:
    certificates = Authority(tmp_path, "hub.example").file.read_text()
    start_operator(SLUICE_HTTPS_PROXY="http://proxy:3128", SLUICE_HUB_CA=certificates)
    await cluster.create(INFERENCE_SERVICE, _on_a_hub(namespace))
    failed = await _ends(cluster, namespace, "resolve", 2, said("AccessDenied", "gated"))
    (container,) = failed["spec"]["template"]["spec"]["containers"]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"]
    trusted = (await cluster.list(CONFIG_MAP, namespace))["chat-hub-ca"]
    assert trusted["data"] == {"ca.crt": certificates}
    for kind, status in (("Ready", "False"), ("ModelAvailable", "False"), ("Stalled", "True")):
        told = _says(kind, status, "AccessDenied")
        await cluster.until(INFERENCE_SERVICE, namespace, told)
    await until_told(cluster, namespace, "AccessDenied")
    again = {"spec": {"model": {"refresh": "2"}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", again)
    found = await cluster.until(
        JOB, namespace, lambda jobs: jobs and failed["metadata"]["name"] not in jobs
    )
    assert len(found) == 1
    await _ends(cluster, namespace, "resolve", 0, resolved())
    await cluster.until(INFERENCE_SERVICE, namespace, _says("Updated", "False", "FetchingModel"))
