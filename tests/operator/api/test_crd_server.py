"""The CRDs on a real API server: accepted, explained, enforced."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from sluice_operator.api.crd import DEFAULT_STATUS
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.stored import as_stored
from sluice_operator.api.validate import ServiceDocument
from sluice_operator.kube.client import path
from sluice_operator.kube.connection import APPLY, Request, Response
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE

from e2e.cluster.controlplane_only import ApiServer
from e2e.cluster.errors import CommandFailedError
from tests.operator.api.documents import (
    EMPTY_KEYS,
    ONE_OF_YAML,
    SPEC_SCHEMA,
    document,
    in_yaml,
    optional_paths,
    with_nulls,
)
from tests.operator.api.invalid_specs import INVALID, INVALID_NAMES, SEVERAL
from tests.operator.api.valid_specs import VALID, VALID_NAMES, Invalid
from tests.operator.examples import FULL_SPEC, pool
from tests.operator.harness.cluster import Cluster

pytestmark = pytest.mark.apiserver
NAMES = ("inferenceservices.serving.sluice.dev", "enginepools.serving.sluice.dev")


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_is_structural_for_the_server(plane: ApiServer, name: str) -> None:
    crd = json.loads(plane.kubectl("get", "crd", name, "-o", "json"))
    found = {each["type"]: each["status"] for each in crd["status"]["conditions"]}
    assert found == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("name", NAMES)
def test_kubectl_explains_every_field(plane: ApiServer, name: str) -> None:
    plane.kubectl("api-resources")  # reads discovery anew
    crd = json.loads(plane.kubectl("get", "crd", name, "-o", "json"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    text = plane.kubectl("explain", name, "--recursive")
    for field in set(_fields(schema["properties"]["spec"])):
        assert re.search(rf"^ +{field}\t", text, re.MULTILINE), field
    assert "-1 turns chunking off." in plane.kubectl("explain", "infsvc.spec.engine.chunkSize")


def _fields(schema: dict[str, Any]) -> list[str]:
    found = []
    for name, child in schema.get("properties", {}).items():
        found += [name, *_fields(child), *_fields(child.get("items", {}))]
    return found


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID.keys())
async def test_an_invalid_spec_is_refused_by_field(
    cluster: Cluster, namespace: str, case: Invalid
) -> None:
    causes = await _causes(cluster, namespace, case.spec)
    assert _fields_of(causes) == {case.field}, f"one finding, one message: {causes}"
    assert any(case.says in cause["message"] for cause in causes), causes


@pytest.mark.parametrize(("spec", "fields"), SEVERAL.values(), ids=SEVERAL.keys())
async def test_every_finding_is_told_at_once(
    cluster: Cluster, namespace: str, spec: dict[str, Any], fields: set[str]
) -> None:
    assert _fields_of(await _causes(cluster, namespace, spec)) == fields


@pytest.mark.parametrize("spec", VALID.values(), ids=VALID.keys())
async def test_other_specs_are_accepted(
    cluster: Cluster, namespace: str, spec: dict[str, Any]
) -> None:
    await _create(cluster, namespace, document(spec))


@pytest.mark.parametrize(("text", "field"), ONE_OF_YAML.values(), ids=ONE_OF_YAML.keys())
def test_kubectl_reads_yaml_so(plane: ApiServer, tmp_path: Path, text: str, field: str) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(in_yaml(text))
    create = ("create", "--dry-run=server", "-f", str(file))
    if not field:
        plane.kubectl(*create)
        return
    with pytest.raises(CommandFailedError, match=re.escape(field)):
        plane.kubectl(*create)


async def _causes(cluster: Cluster, namespace: str, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Why the server refuses a service."""
    request = Request("POST", path(INFERENCE_SERVICE, namespace), body=document(spec))
    response = await cluster.try_send(request)
    assert response.status == 422
    assert isinstance(response.body, dict)
    causes: list[dict[str, Any]] = response.body["details"]["causes"]
    return causes


def _fields_of(causes: list[dict[str, Any]]) -> set[str]:
    """The server also notes, of no field, that it left rules unchecked; and what is wrong with the
    number that is scaled it says a second time, of the field with a dot in front."""
    return {cause["field"].removeprefix(".") for cause in causes} - {"<nil>"}


@pytest.mark.parametrize("name", INVALID_NAMES[1:])
async def test_a_name_that_its_children_cannot_carry_is_refused(
    cluster: Cluster, namespace: str, name: str
) -> None:
    request = Request("POST", path(INFERENCE_SERVICE, namespace), body=document({}, name))
    response = await cluster.try_send(request)
    assert response.status == 422
    assert "metadata.name" in json.dumps(response.body)


@pytest.mark.parametrize("name", VALID_NAMES)
async def test_other_names_are_accepted(cluster: Cluster, namespace: str, name: str) -> None:
    await _create(cluster, namespace, document({}, name))


async def test_unknown_fields_are_refused_when_asked_strictly(
    cluster: Cluster, namespace: str
) -> None:
    body = document({"engine": {"tempo": 1}})
    query = {"fieldValidation": "Strict"}
    request = Request("POST", path(INFERENCE_SERVICE, namespace), query, body)
    response = await cluster.try_send(request)
    assert response.status == 400
    assert "spec.engine.tempo" in json.dumps(response.body)


async def test_defaults_are_written(cluster: Cluster, namespace: str) -> None:
    made = await _create(cluster, namespace, document({"router": {}}))
    assert made["spec"] == {
        "model": {"uri": "dummy://tiny"},
        "paused": False,
        "router": {"replicas": 2},
    }
    assert made["status"] == DEFAULT_STATUS


async def test_every_field_of_the_full_example_is_kept(cluster: Cluster, namespace: str) -> None:
    made = await _create(cluster, namespace, document(FULL_SPEC))
    (sidecar,) = made["spec"]["template"]["sidecars"]
    assert sidecar["ports"][0].pop("protocol") == "TCP"
    assert made["spec"] == FULL_SPEC | {"paused": False}


@pytest.mark.parametrize("spec", VALID.values(), ids=VALID.keys())
async def test_null_means_left_out_in_specs_that_are_valid(
    cluster: Cluster, namespace: str, spec: dict[str, Any]
) -> None:
    filled = document(with_nulls(as_stored(document(spec), ServiceDocument)["spec"]))
    made = await _applied(cluster, namespace, filled)
    assert made.status == 201, made.body
    await _create(cluster, namespace, filled | {"metadata": {"name": "created"}})


@pytest.mark.parametrize(
    "spec", [c.spec for c in INVALID.values() if "model" not in c.spec or c.spec["model"]]
)
async def test_null_means_left_out_in_specs_that_are_refused(
    cluster: Cluster, namespace: str, spec: dict[str, Any]
) -> None:
    """No rule takes a null for a value."""
    causes = await _causes(cluster, namespace, with_nulls(spec))
    assert {c["field"] for c in causes} == {
        c["field"] for c in await _causes(cluster, namespace, spec)
    }


@pytest.mark.parametrize("options", [("--server-side",), ()], ids=["server-side", "client-side"])
def test_empty_keys_are_applied(
    plane: ApiServer, namespace: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    file = tmp_path / "service.yaml"
    head, _, _ = in_yaml("").rpartition("spec: ")
    file.write_text(f"{head}spec:\n  model: {{uri: dummy://tiny}}{EMPTY_KEYS}")
    for _ in range(2):
        plane.kubectl("apply", *options, "-n", namespace, "-f", str(file))


async def test_null_is_as_good_as_leaving_out_for_every_field(
    cluster: Cluster, namespace: str
) -> None:
    """In server-side apply, where other definitions refuse it."""
    full = document(FULL_SPEC)["spec"]
    paths = list(optional_paths(SPEC_SCHEMA, full))
    assert len(paths) > 50
    for path_ in paths:
        answers = []
        for is_null in (True, False):
            spec = copy.deepcopy(full)
            parent: Any = spec
            for step in path_[:-1]:
                parent = parent[step]
            if is_null:
                parent[path_[-1]] = None
            else:
                del parent[path_[-1]]
            response = await _applied(cluster, namespace, document(spec))
            answers.append((response.status, _messages(response)))
        assert answers[0] == answers[1], path_


def _messages(response: Response) -> set[str]:
    causes = (response.body.get("details") or {}).get("causes") or ()
    return {f"{cause['field']}: {cause['message']}" for cause in causes}


async def _applied(cluster: Cluster, namespace: str, body: dict[str, Any]) -> Response:
    """The answer to a server-side apply that stores nothing."""
    target = path(INFERENCE_SERVICE, namespace, body["metadata"]["name"])
    query = {"fieldManager": "helm", "dryRun": "All", "fieldValidation": "Strict"}
    return await cluster.try_send(Request("PATCH", target, query, body, APPLY))


async def test_a_null_for_prefill_is_kept_for_the_operator_to_refuse(
    cluster: Cluster, namespace: str
) -> None:
    made = await _create(cluster, namespace, document({"prefill": None}))
    assert made["spec"]["prefill"] is None
    with pytest.raises(InvalidSpecError, match=re.escape("write `prefill: {}`, or leave it out")):
        parse(InferenceServiceSpec, made["spec"], "spec")


@pytest.mark.parametrize("spec", [{}, {"prefill": {}}], ids=["one pool", "two pools"])
async def test_a_service_is_scaled_by_its_own_subresource(
    plane: ApiServer, cluster: Cluster, namespace: str, spec: dict[str, Any]
) -> None:
    await _create(cluster, namespace, document(spec))
    plane.kubectl("scale", "infsvc", "chat", "--replicas=7", "-n", namespace)
    scaled = await cluster.get(INFERENCE_SERVICE, namespace, "chat")
    assert scaled["spec"]["replicas"] == 7


async def test_a_service_that_is_scaled_within_limits_takes_no_number(
    plane: ApiServer, cluster: Cluster, namespace: str
) -> None:
    limits = {"autoscaling": {"minReplicas": 1, "maxReplicas": 2}}
    await _create(cluster, namespace, document(limits))
    with pytest.raises(CommandFailedError, match="minReplicas and maxReplicas of autoscaling"):
        plane.kubectl("scale", "infsvc", "chat", "--replicas=7", "-n", namespace)


async def test_services_are_found_by_their_model(
    plane: ApiServer, cluster: Cluster, namespace: str
) -> None:
    await _create(cluster, namespace, document({}))
    await _create(cluster, namespace, document({"model": {"uri": "dummy://other"}}, "other"))
    selector = "--field-selector=spec.model.uri=dummy://other"
    found = plane.kubectl("get", "infsvc", selector, "-o", "name", "-n", namespace)
    assert found.split() == ["inferenceservice.serving.sluice.dev/other"]


async def test_the_planned_pool_is_accepted_and_scales(
    plane: ApiServer, cluster: Cluster, namespace: str
) -> None:
    wanted = pool(FULL_SPEC)
    metadata = {"name": wanted["metadata"]["name"], "namespace": namespace}
    made = await cluster.create(ENGINE_POOL, wanted | {"metadata": metadata})
    assert made["spec"] == wanted["spec"]
    plane.kubectl("scale", "enginepool", "chat-mixed", "--replicas=7", "-n", namespace)
    scaled = await cluster.get(ENGINE_POOL, namespace, "chat-mixed")
    assert scaled["spec"]["replicas"] == 7


async def test_the_table_shows_what_matters(
    plane: ApiServer, cluster: Cluster, namespace: str
) -> None:
    await _create(cluster, namespace, document({}))
    head, row = plane.kubectl("get", "infsvc", "-n", namespace).strip().splitlines()
    assert head.split() == ["NAME", "MODE", "READY", "UPDATED", "ENGINES", "MODEL", "REASON", "AGE"]
    assert row.split()[:5] == ["chat", "Unknown", "Unknown", "dummy://tiny", "Pending"]
    await cluster.create(ENGINE_POOL, pool() | {"metadata": {"name": "a", "namespace": namespace}})
    everything = plane.kubectl("get", "all", "-n", namespace)
    assert "inferenceservice.serving.sluice.dev/chat" in everything
    assert "enginepool" not in everything
    assert "enginepool" in plane.kubectl("get", "sluice", "-n", namespace)


@pytest.mark.parametrize("kind", ["inferenceservices", "enginepools"])
def test_client_side_apply_takes_the_definition(plane: ApiServer, kind: str) -> None:
    file = Path(__file__).parents[3] / "crds" / f"{kind}.serving.sluice.dev.yaml"
    plane.kubectl("apply", "--dry-run=server", "-f", str(file))


async def _create(cluster: Cluster, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
    body = body | {"metadata": body["metadata"] | {"namespace": namespace}}
    return await cluster.create(INFERENCE_SERVICE, body)
