"""The samples for KEDA and the HPA: valid where they are read, and of the pools that there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from sluice_contract.cluster.metrics import ENGINE
from sluice_operator.kube.kinds import ENGINE_POOL, of_kind
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.plan import plan_service

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.examples import IMAGES

FOLDER = Path(__file__).parents[3] / "manifests" / "autoscaling"
SCALED_OBJECT = Path(__file__).parent / "fixtures" / "scaledobject.json"


def read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def scaled_service() -> dict[str, Any]:
    (found,) = read("external-service.yaml")
    metadata = found["metadata"] | {"namespace": "default", "uid": "u", "generation": 1}
    return found | {"metadata": metadata}


def test_each_sample_scales_the_pools_of_its_service_within_their_bounds() -> None:
    service = scaled_service()
    plan = plan_service(ServiceObserved(service, IMAGES))
    assert plan.refusal is None
    names = {pool["metadata"]["name"] for pool in of_kind(plan.apply, ENGINE_POOL)}
    limits = {
        f"external-{role}": (pool["autoscaling"]["minReplicas"], pool["autoscaling"]["maxReplicas"])
        for role, pool in service["spec"]["pools"].items()
    }
    assert names == limits.keys()
    for file, least, most in (
        ("keda.yaml", "minReplicaCount", "maxReplicaCount"),
        ("hpa.yaml", "minReplicas", "maxReplicas"),
    ):
        targets = {each["spec"]["scaleTargetRef"]["name"]: each["spec"] for each in read(file)}
        assert {name: (spec[least], spec[most]) for name, spec in targets.items()} == limits
        for spec in targets.values():
            assert spec["scaleTargetRef"]["apiVersion"] == ENGINE_POOL.api_version
            assert spec["scaleTargetRef"]["kind"] == ENGINE_POOL.kind


def test_what_they_scale_by_is_a_metric_of_engines() -> None:
    known = {metric.name for metric in ENGINE}
    queries = [each["spec"]["triggers"][0]["metadata"]["query"] for each in read("keda.yaml")]
    assert {query.removeprefix("sum(").partition("{")[0] for query in queries} <= known
    metrics = [
        each["spec"]["metrics"][0]["external"]["metric"]["name"] for each in read("hpa.yaml")
    ]
    assert set(metrics) <= known


def test_keda_would_take_the_scaled_objects() -> None:
    recorded = json.loads(SCALED_OBJECT.read_text())["schema"]
    checker = jsonschema.Draft202012Validator(recorded)
    for each in read("keda.yaml"):
        assert list(checker.iter_errors(each)) == []
        wrong = each | {"spec": each["spec"] | {"maxReplicas": 4}}
        assert [error.validator for error in checker.iter_errors(wrong)] == ["additionalProperties"]


@pytest.mark.apiserver
def test_the_api_server_takes_the_hpas_and_their_service(plane: ApiServer) -> None:
    for name in ("hpa.yaml", "external-service.yaml"):
        plane.kubectl("apply", "--dry-run=server", "-f", str(FOLDER / name))
