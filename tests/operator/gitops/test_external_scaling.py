"""The samples for KEDA and the HPA: valid where they are read, and of the pools that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from sluice_contract.cluster.labels import API_VERSION
from sluice_contract.cluster.metrics import ENGINE
from sluice_contract.wire.load import HandoverQueues
from sluice_operator.kube.kinds import ENGINE_POOL, of_kind
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.plan import ServicePlan, plan_service

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.examples import IMAGES

FOLDER = Path(__file__).parents[3] / "manifests" / "autoscaling"
SCALED_OBJECT = Path(__file__).parent / "fixtures" / "scaledobject.json"
KEDA: Final = ("keda.yaml", "keda-queue-length.yaml")
HPA: Final = ("hpa.yaml", "hpa-queue-length.yaml")
SERVICE_AND_HPA: Final = "hpa-service.yaml"


def read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def planned(service: dict[str, Any]) -> ServicePlan:
    metadata = service["metadata"] | {"namespace": "default", "uid": "u", "generation": 1}
    return plan_service(ServiceObserved(service | {"metadata": metadata}, IMAGES))


def test_each_sample_scales_the_pools_of_its_service_within_their_bounds() -> None:
    (service,) = read("external-service.yaml")
    plan = planned(service)
    assert plan.refusal is None
    names = [pool["metadata"]["name"] for pool in of_kind(plan.apply, ENGINE_POOL)]
    assert names == ["external-prefill", "external-decode"]
    scaling = service["spec"]["autoscaling"]
    limits = dict.fromkeys(names, (scaling["minReplicas"], scaling["maxReplicas"]))
    for file, least, most in (
        *((file, "minReplicaCount", "maxReplicaCount") for file in KEDA),
        *((file, "minReplicas", "maxReplicas") for file in HPA),
    ):
        targets = {each["spec"]["scaleTargetRef"]["name"]: each["spec"] for each in read(file)}
        assert {name: (spec[least], spec[most]) for name, spec in targets.items()} == limits
        for spec in targets.values():
            assert spec["scaleTargetRef"]["apiVersion"] == ENGINE_POOL.api_version
            assert spec["scaleTargetRef"]["kind"] == ENGINE_POOL.kind


def test_a_service_that_an_hpa_scales_itself_has_replicas_to_read() -> None:
    service, hpa = read(SERVICE_AND_HPA)
    assert planned(service).refusal is None
    assert service["spec"]["replicas"] == hpa["spec"]["minReplicas"]
    target = {"apiVersion": API_VERSION, "kind": "InferenceService", "name": "scaled"}
    assert hpa["spec"]["scaleTargetRef"] == target
    assert service["metadata"]["name"] == target["name"]


def queries(file: str) -> list[str]:
    triggers = [each for scaled in read(file) for each in scaled["spec"]["triggers"]]
    return [trigger["metadata"]["query"] for trigger in triggers]


def external_metrics(file: str) -> list[dict[str, Any]]:
    metrics = [each for scaled in read(file) for each in scaled["spec"].get("metrics", ())]
    return [metric["external"]["metric"] for metric in metrics]


def test_what_they_scale_by_is_a_metric_of_engines_with_such_labels() -> None:
    known = {metric.name: {*metric.labels} for metric in ENGINE}
    targets = {"namespace", "serving_sluice_dev_service", "serving_sluice_dev_role"}
    for query in (query for file in KEDA for query in queries(file)):
        name, _, selector = query.removeprefix("sum(").partition("{")
        assert {*re.findall(r"(\w+)=", selector)} <= known[name] | targets
    for metric in (m for file in (*HPA, SERVICE_AND_HPA) for m in external_metrics(file)):
        expressions = metric["selector"].get("matchExpressions", ())
        labels = {*metric["selector"]["matchLabels"], *(each["key"] for each in expressions)}
        assert labels <= known[metric["name"]] | targets


@pytest.mark.parametrize("files", [KEDA, HPA])
def test_queue_lengths_are_those_that_our_targets_count(files: tuple[str, str]) -> None:
    """Nothing twice, as in transfer, and decode's pages too, as a full pool has no queue."""
    found = queries(files[1]) if files is KEDA else external_metrics(files[1])
    prefill, decode, pages = map(str, found)
    assert "sluice_queued_requests" in prefill
    assert "prefill" in prefill
    assert "sluice_handover_requests" in decode
    assert {queue for queue in HandoverQueues.__dataclass_fields__ if queue in decode} == {
        "prealloc",
        "inflight",
    }
    assert "sluice_token_usage_ratio" in pages


def test_keda_would_take_the_scaled_objects() -> None:
    recorded = json.loads(SCALED_OBJECT.read_text())["schema"]
    checker = jsonschema.Draft202012Validator(recorded)
    for each in (scaled for file in KEDA for scaled in read(file)):
        assert list(checker.iter_errors(each)) == []
        wrong = each | {"spec": each["spec"] | {"maxReplicas": 4}}
        assert [error.validator for error in checker.iter_errors(wrong)] == ["additionalProperties"]


@pytest.mark.apiserver
def test_the_api_server_takes_the_hpas_and_their_service(plane: ApiServer) -> None:
    for name in (*HPA, SERVICE_AND_HPA, "external-service.yaml"):
        plane.kubectl("apply", "--dry-run=server", "-f", str(FOLDER / name))
