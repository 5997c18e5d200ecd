"""Specs as whole documents, as objects and as YAML that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from sluice_operator.api.crd import inference_service_crd

Path_ = tuple[str | int, ...]

ONE_OF_YAML: dict[str, tuple[str, str]] = {
    "integers": (
        "replicas: 2.0, engine: {chunkSize: 6.4e1, kvPoolTokens: 1e18, "
        "pageSize: 0o20, minPrefillTokens: 020, maxPrefillTokens: 1_024, threads: 09}",
        "",
    ),
    "a base of 60": ("replicas: 1:30", "spec.replicas"),
    "booleans": ("paused: y, engine: {overlap: N, prefixCache: on}", ""),
    "a boolean as text": ("engine: {image: y}", "spec.engine.image"),
    "an exponent as text": ("engine: {image: 1e3}", "spec.engine.image"),
    "a day": ("template: {annotations: {a: 2024-01-01}}", ""),
    "keys": ("template: {nodeSelector: {2: a, true: b}}", ""),
    "an unknown key of null": ("engine: {tempo: null}", "spec.engine.tempo"),
    "another spelling": ("engine: {chunk_size: 64}", "spec.engine.chunk_size"),
}
"""What a person may write below `spec` in YAML, and the field that is refused; "" where none is."""


def document(spec: dict[str, Any], name: str = "chat") -> dict[str, Any]:
    """An InferenceService with `spec` over a minimal one; a None takes the model away."""
    merged = {"model": {"uri": "dummy://tiny"}} | spec
    return {
        "apiVersion": "serving.sluice.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            key: value for key, value in merged.items() if key != "model" or value is not None
        },
    }


def in_yaml(below_spec: str) -> str:
    """The text of such a service, with flow-style YAML below its spec."""
    head = "apiVersion: serving.sluice.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: chat}"
    return f"{head}\nspec: {{model: {{uri: 'dummy://tiny'}}, {below_spec}}}\n"


SPEC_SCHEMA: dict[str, Any] = inference_service_crd()["spec"]["versions"][0]["schema"][
    "openAPIV3Schema"
]["properties"]["spec"]


def with_nulls(value: Any, schema: dict[str, Any] = SPEC_SCHEMA) -> Any:
    """A spec in which every field is null that it leaves out, but for `prefill`."""
    if isinstance(value, list):
        return [with_nulls(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    optional = {name for name, below in properties.items() if "nullable" in below} - {"prefill"}
    filled = {name: with_nulls(below, properties.get(name, {})) for name, below in value.items()}
    return dict.fromkeys(sorted(optional)) | filled


def optional_paths(schema: dict[str, Any], value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Where `value` has a field that it might leave out."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from optional_paths(schema.get("items", {}), item, (*at, index))
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name, below in value.items():
            if properties.get(name, {}).get("nullable"):
                yield (*at, name)
            yield from optional_paths(properties.get(name, {}), below, (*at, name))


EMPTY_KEYS = """
  paused:
  accelerator:
  resources: {limits: ~, requests: ~}
  template: {tolerations: ~, nodeSelector: ~, imagePullSecrets: ~, env: ~, volumes: ~}
  engine: {image: ~, chunkSize: ~, kvTransfer: ~}
  slo:
  autoscaling:
  rollout:
  router: {replicas: ~, auth: ~, cors: ~, route: ~, resources: ~}
  tracing:
  metrics:
"""
"""What charts leave when their values are empty."""


def spec_file(folder: Path, *documents: Any) -> str:
    """The documents as one file; its path."""
    path = folder / "service.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)
