"""The generated CRDs, without a server: fresh, small, documented, structural."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sluice_operator.api.crd import engine_pool_crd, inference_service_crd
from sluice_operator.cli.generate_crds import main

CRDS = Path(__file__).parents[3] / "crds"
ANNOTATIONS_BYTES = 256 * 1024
"""The API server's limit on all annotations of an object."""
REQUEST_BYTES = 3 * 512 * 1024
"""etcd's limit on what is written at once."""
ROOM_BYTES = 70_000
SERVICE_BYTES = 170_000
"""Most bytes of the InferenceService's definition; the fields that are planned take less."""
DEFINITIONS = {"InferenceService": inference_service_crd(), "EnginePool": engine_pool_crd()}


def _schema(crd: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def _nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from _nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _nodes(schema[key], f"{path}[]")


@pytest.fixture(params=list(DEFINITIONS.values()), ids=list(DEFINITIONS))
def crd(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


@pytest.mark.process
def test_crds_are_fresh_and_written_into_the_folder_given(tmp_path: Path) -> None:
    main([str(tmp_path / "out")])
    fresh = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert fresh.keys() == {path.name for path in CRDS.glob("*.yaml")}
    for name, text in fresh.items():
        assert (CRDS / name).read_text() == text, f"crds/{name} is stale; run `make crds`"


def test_crds_fit_where_kubectl_apply_keeps_them(crd: dict[str, Any]) -> None:
    annotation = as_kubectl_keeps_it(crd)
    assert len(annotation) <= ANNOTATIONS_BYTES - ROOM_BYTES, "there are fields still to come"
    stored = crd | {"metadata": crd["metadata"] | {"annotations": {"last-applied": annotation}}}
    assert len(as_kubectl_keeps_it(stored)) <= REQUEST_BYTES // 2, "versions are still to come"


def test_the_definition_of_the_service_keeps_to_its_own_size() -> None:
    assert len(as_kubectl_keeps_it(inference_service_crd())) <= SERVICE_BYTES


def as_kubectl_keeps_it(crd: dict[str, Any]) -> str:
    """The annotation last-applied-configuration: compact JSON, by Go's encoder, which escapes
    what HTML would."""
    text = json.dumps(crd, separators=(",", ":"), ensure_ascii=False)
    for character in "&<>":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def test_every_field_is_documented(crd: dict[str, Any]) -> None:
    silent = [
        f"{path}.{name}"
        for path, node in _nodes(_schema(crd))
        for name, child in node.get("properties", {}).items()
        if not child.get("description", "").strip() and f"{path}.{name}" != ".metadata"
    ]
    assert silent == []


def test_the_schema_is_structural(crd: dict[str, Any]) -> None:
    for path, node in _nodes(_schema(crd)):
        assert not node.keys() & {"$ref", "oneOf", "allOf", "patternProperties", "title"}, path
        if "x-kubernetes-int-or-string" in node:
            continue
        assert "anyOf" not in node, path
        assert "type" in node or node.get("x-kubernetes-preserve-unknown-fields"), path


def test_lists_and_texts_with_rules_are_bounded(crd: dict[str, Any]) -> None:
    for path, node in _nodes(_schema(crd)["properties"]["spec"]):
        if node.get("type") == "array":
            assert "maxItems" in node, path


def test_only_paused_replicas_and_the_protocol_of_a_port_have_defaults() -> None:
    found = {
        kind: {
            path
            for path, node in _nodes(_schema(crd))
            if "default" in node and not path.endswith(".ports[].protocol")
        }
        for kind, crd in DEFINITIONS.items()
    }
    assert found["InferenceService"] == {
        ".spec.paused", ".spec.router.replicas", ".status",
    }  # fmt: skip
    assert found["EnginePool"] == {".spec.replicas", ".status"}


def test_what_holds_when_a_field_is_left_out_is_told_once_in_its_description() -> None:
    spec = _schema(inference_service_crd())["properties"]["spec"]["properties"]
    said = {name: node["description"] for name, node in spec["engine"]["properties"].items()}
    assert said["drainSeconds"].endswith(" Default: 120.")
    assert said["maxQueuedRequests"].endswith(" Default: 4096.")
    assert "Default" not in said["image"]
    for path, node in _nodes(_schema(inference_service_crd())):
        assert node.get("description", "").count("Default:") <= 1, path


def test_no_field_is_a_floating_point_number(crd: dict[str, Any]) -> None:
    numbers = [path for path, node in _nodes(_schema(crd)) if node.get("type") == "number"]
    assert numbers == []


def test_every_list_says_how_it_is_merged(crd: dict[str, Any]) -> None:
    lists = {path: node for path, node in _nodes(_schema(crd)) if node.get("type") == "array"}
    assert [path for path, node in lists.items() if "x-kubernetes-list-type" not in node] == []


def test_every_column_is_described_and_both_kinds_are_of_one_category(crd: dict[str, Any]) -> None:
    (version,) = crd["spec"]["versions"]
    assert all(column["description"] for column in version["additionalPrinterColumns"])
    assert "sluice" in crd["spec"]["names"]["categories"]
