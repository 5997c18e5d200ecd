"""Every field of an InferenceService, edited on a running one: carried out, or refused by name.

`EDITS` has a row for every field of the schema; a test holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from sluice_operator.api.crd import inference_service_crd
from sluice_operator.cli.preview import preview
from sluice_operator.kube.client import path as path_of
from sluice_operator.kube.connection import Request
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest

from tests.operator.examples import IMAGES
from tests.operator.harness.cluster import MERGE_PATCH, Cluster, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest, snapshot
from tests.operator.harness.scenery import chat, settled

StartOperator = Callable[..., OperatorProcess]

TEMPLATE: Final[dict[str, Any]] = {
    "annotations": {"a": "b"},
    "nodeSelector": {"disk": "fast"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
                ]
            }
        }
    },
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "imagePullSecrets": [{"name": "pull"}],
    "env": [{"name": "A", "value": "b"}],
    "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1024Mi"}}],
    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    "sidecars": [{"name": "log", "image": "log:1", "args": ["-f"]}],
    "initContainers": [{"name": "fetch", "image": "fetch:1"}],
    "labels": {"team": "search"},
    "schedulerName": "batch",
    "fsGroup": 2000,
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
}
"""In an order in which each can be added to the ones before."""

EDITS: Final[dict[str, Any]] = {
    "model.uri": "dummy://llama-tiny",
    "model.name": "chatty",
    "model.aliases": ["chat-latest"],
    "model.revision": "main",
    "model.tokenSecretRef": {"name": "hf", "key": "token"},
    "model.cache": {"claim": "models"},
    "model.refresh": "2",
    "model.resources": {"limits": {"cpu": "4"}},
    "model.adapters": [{"name": "sql", "uri": "pvc://loras/sql"}],
    "engine.maxLorasPerBatch": 2,
    "engine.maxLoraRank": 8,
    "slo.ttftMilliseconds": 900,
    "slo.itlMilliseconds": 40,
    "slo.percentile": 90,
    "engine.dtype": "float32",
    "engine.kvCacheDtype": "fp8_e4m3",
    "engine.tensorParallelSize": 2,
    "engine.contextLength": 2048,
    "engine.chunkSize": 256,
    "engine.maxPrefillTokens": 1024,
    "engine.minPrefillTokens": 32,
    "engine.maxRunningRequests": 8,
    "engine.maxQueuedRequests": 64,
    "engine.cudaGraphMaxBatch": 4,
    "engine.attentionBackend": "torch",
    "engine.weightDtype": "int8",
    "engine.pageSize": 8,
    "engine.kvPoolTokens": 8192,
    "engine.memoryPercent": 50,
    "engine.mixedChunk": False,
    "engine.prefixCache": False,
    "engine.prefixEvictionPolicy": "lfu",
    "engine.overlap": True,
    "engine.schedulingPolicy": "sjf",
    "engine.reservePercent": 50,
    "engine.priorityThreshold": 3,
    "engine.threads": 2,
    "engine.strictRequests": True,
    "engine.toolCallFormat": "mistral",
    "engine.reasoningFormat": "none",
    "engine.speculation": {"method": "NGram", "tokens": 2},
    "engine.hostCache": {"memory": "64Gi", "disk": {"size": "1Ti"}},
    "engine.kvTransfer": {"backend": "Mooncake"},
    "engine.image": "sluice/engine:other",
    "engine.drainSeconds": 30,
    "engine.startupSeconds": 60,
    "replicas": 3,
    "accelerator": {"product": "NVIDIA-A100-SXM4-40GB", "count": 1},
    "resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}},
    **{f"template.{name}": value for name, value in TEMPLATE.items()},
    "autoscaling.minReplicas": 2,
    "autoscaling.maxReplicas": 3,
    "autoscaling.gpuBudget": 4,
    "autoscaling.target": {"queueMilliseconds": 1500},
    "autoscaling.onMetricsLoss": "Floor",
    "autoscaling.provider": "External",
    "rollout.strategy": "InPlace",
    "rollout.canary": {
        "steps": [5, 25],
        "minutes": 20,
        "judge": {"slo": False},
        "onWorse": "Hold",
    },
    "rollout.upgrade": "2026-01-02",
    "rollout.restartedAt": "2026-01-02T03:04:05Z",
    "router.replicas": 3,
    "router.image": "sluice/router:other",
    "router.resources": {"limits": {"memory": "512Mi"}},
    **{f"router.template.{name}": TEMPLATE[name] for name in TEMPLATE if name != "initContainers"},
    "router.auth": {"secretRef": {"name": "keys"}, "tenants": [{"name": "a", "maxPriority": 3}]},
    "router.cors": {"allowedOrigins": ["https://chat.example.com"]},
    "router.page": False,
    "router.route": {"parentRefs": [{"name": "shared"}]},
    "router.inferencePool": {"endpointPickerRef": {"name": "picker", "port": 9002}},
    "tracing": {"endpoint": "http://collector.monitoring:4318", "samplePercent": 50},
    "metrics.compatibility": "vLLM",
    "paused": True,
    "prefill": {},
}

ONLY_WITH: Final = {
    "model.revision": "a model of a hub",
    "model.tokenSecretRef": "a model of a hub",
    "model.cache": "a model of a hub",
    "model.refresh": "a model of a hub",
    "model.resources": "a model of a hub",
    "engine.kvTransfer": "prefill",
}
"""Fields that the API server takes only together with others: refused by themselves, by name."""

TAKEN_BACK: Final = ("prefill",)
"""After these edits their section is taken back: with two pools other fields are valid."""

CARRIED_OUT: Final = {
    "prefill", "model.uri", "engine.chunkSize", "engine.mixedChunk", "accelerator",
    "slo.ttftMilliseconds", "slo.itlMilliseconds", "slo.percentile", "router.auth", "paused",
}  # fmt: skip
"""Some that must not be refused."""

LIVE: Final = (
    "model.uri", "prefill", "slo.ttftMilliseconds", "engine.chunkSize", "engine.cudaGraphMaxBatch",
    "autoscaling.minReplicas", "template.volumes", "autoscaling.target",
    "autoscaling.provider", "rollout.restartedAt", "router.replicas", "router.template.tolerations",
    "tracing", "paused",
)  # fmt: skip
"""One of each section, one that is refused, and those that only conditions tell of: on a running
service. What follows from all others is seen in the plan."""

SCALED: Final = {"replicas": None, "autoscaling": {"minReplicas": 1, "maxReplicas": 2}}
"""The pool, for edits of how pools are scaled."""
OF_THE_TICK: Final = ("autoscaling.gpuBudget", "autoscaling.target", "autoscaling.onMetricsLoss")
"""What follows from these is decided with the next load report, and nothing is written before."""
LATER: Final = ("rollout.upgrade", "rollout.canary")
"""What these change is what another release has made, and the next roll-out."""
ONLY_TOLD: Final = (
    *OF_THE_TICK, "autoscaling.provider", "autoscaling.maxReplicas", "paused",
)  # fmt: skip
"""What these change is the status."""
BESIDE: Final = {
    "slo.percentile": ["slo.ttftMilliseconds"],
    "template.volumeMounts": ["template.volumes"],
    "router.template.volumeMounts": ["router.template.volumes"],
    "autoscaling.gpuBudget": ["accelerator"],
}
"""What else a field needs."""


def schema_fields() -> Iterator[str]:
    """The fields of the spec, down to where a row of EDITS sets a whole value."""
    version = inference_service_crd()["spec"]["versions"][0]
    yield from _fields(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "")


def _fields(schema: Manifest, at: str) -> Iterator[str]:
    for name, below in schema.get("properties", {}).items():
        path = f"{at}.{name}" if at else name
        if path in EDITS or "properties" not in below:
            yield path
        else:
            yield from _fields(below, path)


def edit(path: str, value: Any) -> Manifest:
    """A merge patch that sets one field."""
    for name in reversed(["spec", *path.split(".")]):
        value = {name: value}
    patch: Manifest = value
    return patch


def test_every_field_of_the_schema_has_an_edit() -> None:
    assert set(schema_fields()) == set(EDITS)


def merged(value: Any, patch: Any) -> Any:
    """What a JSON merge patch makes of a value."""
    if not isinstance(patch, dict):
        return patch
    whole = dict(value) if isinstance(value, dict) else {}
    for name, below in patch.items():
        whole[name] = merged(whole.get(name), below)
    return {name: below for name, below in whole.items() if below is not None}


def with_what_it_needs(path: str) -> Manifest:
    """A service of which a field may be edited."""
    service = chat("default")
    for other in BESIDE.get(path, ()):
        service = merged(service, edit(other, EDITS[other]))
    if path.startswith("autoscaling."):
        service = merged(service, {"spec": SCALED})
    return service


@pytest.mark.parametrize("path", sorted(EDITS.keys() - ONLY_WITH.keys()))
def test_an_edit_is_planned_or_refused_by_name(path: str) -> None:
    service = with_what_it_needs(path)
    planned = preview(merged(service, edit(path, EDITS[path])), IMAGES)
    if (refusal := planned.plan.refusal) is None:
        assert (
            path in (*ONLY_TOLD, *LATER) or planned.manifests != preview(service, IMAGES).manifests
        )
    else:
        assert refusal.reason == "NotImplemented"
        assert f"spec.{path.split('.')[0]}" in refusal.message
        assert path not in CARRIED_OUT


@pytest.mark.apiserver
async def test_the_api_server_takes_every_field(cluster: Cluster, namespace: str) -> None:
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    target = path_of(INFERENCE_SERVICE, namespace, "chat")
    for path in EDITS.keys() - ONLY_WITH.keys():
        body = {"spec": merged(with_what_it_needs(path), edit(path, EDITS[path]))["spec"]}
        await cluster.send(Request("PATCH", target, {"dryRun": "All"}, body, MERGE_PATCH))


@pytest.mark.apiserver
async def test_edits_of_a_running_service_are_carried_out_or_refused_by_name(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)
    refused: set[str] = set()
    before = await snapshot(cluster, namespace)
    for path in LIVE:
        value = EDITS[path]
        scales = path.startswith("autoscaling.")
        if scales:
            await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": SCALED})
            await cluster.until(INFERENCE_SERVICE, namespace, settled())
            before = await snapshot(cluster, namespace)
        await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit(path, value))
        found = await cluster.until(INFERENCE_SERVICE, namespace, settled())
        ready = condition(found["chat"], "Ready")
        assert ready["reason"] != "InvalidSpec", (path, ready)
        if ready["reason"] == "NotImplemented":
            assert f"spec.{path.split('.')[0]}" in ready["message"], (path, ready)
            refused.add(path)
            await take_back(cluster, namespace, path)
            continue
        if not scales:
            # A process without memory has not decided anything, and would write that.
            await comes_to_rest(cluster, namespace)
        after = await snapshot(cluster, namespace)
        if path not in OF_THE_TICK:
            assert _without_spec(after) != _without_spec(before), f"{path} has changed nothing"
        before = after
        if path in TAKEN_BACK or scales:
            await take_back(cluster, namespace, path)
        if path in TAKEN_BACK or scales:
            await cluster.until(INFERENCE_SERVICE, namespace, settled())
            await comes_to_rest(cluster, namespace)
            before = await snapshot(cluster, namespace)
    assert refused == {"engine.cudaGraphMaxBatch"}


@pytest.mark.apiserver
async def test_a_setting_that_breaks_the_promise_is_refused_by_name(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace, slo={"itlMilliseconds": 40}))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit("engine.mixedChunk", False))
    found = await cluster.until(INFERENCE_SERVICE, namespace, settled())
    ready = condition(found["chat"], "Ready")
    assert ready["reason"] == "InvalidSpec"
    assert "spec.engine.mixedChunk: false" in ready["message"]
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit("slo", None))
    found = await cluster.until(INFERENCE_SERVICE, namespace, settled())
    assert condition(found["chat"], "Ready")["reason"] != "InvalidSpec"


async def take_back(cluster: Cluster, namespace: str, path: str) -> None:
    """Unsets a field, with the sections that it alone has brought about."""
    section = path.split(".")[0]
    at = section if section in ("slo", "autoscaling", "rollout") else path
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit(at, None))


def _without_spec(found: dict[str, Manifest]) -> dict[str, Manifest]:
    """What the operator wrote: children, and the conditions of the service but for generations."""
    service = found["InferenceService chat"]
    reasons = [(c["type"], c["status"], c["reason"]) for c in service["status"]["conditions"]]
    return {**found, "InferenceService chat": {"reasons": reasons}}


@pytest.mark.apiserver
@pytest.mark.parametrize("path", sorted(ONLY_WITH))
async def test_a_field_out_of_place_is_refused_by_the_api_server(
    cluster: Cluster, namespace: str, path: str
) -> None:
    service = chat(namespace)
    await cluster.create(INFERENCE_SERVICE, service)
    with pytest.raises(AssertionError, match=ONLY_WITH[path]):
        await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit(path, EDITS[path]))
