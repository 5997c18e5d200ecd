"""What Kustomize generates or overrides reaches an InferenceService."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from sluice_operator.api.crd import inference_service_crd

from e2e.cluster.controlplane_only import ApiServer

CONFIG: Final = Path(__file__).parents[3] / "manifests/kustomizeconfig/inferenceservice.yaml"
NAMES: Final = {
    "Secret": r"(secretRef|tokenSecretRef|secretKeyRef|imagePullSecrets)/name$|/secretName$",
    "ConfigMap": r"(configMapKeyRef|configMap)/name$",
    "PersistentVolumeClaim": r"/claimName$|cache/claim$",
    "ResourceClaimTemplate": r"/claimTemplate$",
}
"""Kind -> fields of a spec that name an object of it, by their ends."""
SERVICE: Final[dict[str, Any]] = {
    "apiVersion": "serving.sluice.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"uri": "hf://a/b", "tokenSecretRef": {"name": "keys", "key": "hub"}},
        "engine": {"image": "reg/engine:1"},
        "accelerator": {"count": 1, "claimTemplate": "gpus"},
        "prefill": {
            "accelerator": {"count": 2, "claimTemplate": "gpus"},
            "engine": {"image": "reg/engine:1"},
            "template": {"volumes": [{"name": "a", "configMap": {"name": "settings"}}]},
        },
        "router": {"auth": {"secretRef": {"name": "keys"}}, "image": "reg/router:1"},
    },
}
CLAIMS: Final[dict[str, Any]] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpus"},
}
KUSTOMIZATION: Final[dict[str, Any]] = {
    "resources": ["service.yaml", "claims.yaml"],
    "configurations": [CONFIG.name],
    "namePrefix": "team-",
    "secretGenerator": [{"name": "keys", "literals": ["a=b"]}],
    "configMapGenerator": [{"name": "settings", "literals": ["a=b"]}],
    "images": [{"name": "reg/engine", "newTag": "2"}],
    "replicas": [{"name": "chat", "count": 3}],
}


def _paths(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, below in schema.get("properties", {}).items():
        at = f"{path}/{name}" if path else name
        yield at
        yield from _paths(below, at)
        yield from _paths(below.get("items", {}), at)


def _config() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    return found


@pytest.mark.parametrize("kind", NAMES)
def test_every_field_that_names_an_object_is_followed(kind: str) -> None:
    version = inference_service_crd()["spec"]["versions"][0]
    paths = _paths({"properties": version["schema"]["openAPIV3Schema"]["properties"]})
    named = {path for path in paths if path.startswith("spec/") and re.search(NAMES[kind], path)}
    (row,) = (row for row in _config()["nameReference"] if row["kind"] == kind)
    assert {field["path"] for field in row["fieldSpecs"]} == named


@pytest.mark.apiserver
def test_generated_names_images_and_replicas_reach_the_service(
    plane: ApiServer, tmp_path: Path
) -> None:
    shutil.copy(CONFIG, tmp_path)
    (tmp_path / "service.yaml").write_text(yaml.safe_dump(SERVICE))
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(CLAIMS))
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(KUSTOMIZATION))
    found = {
        each["kind"]: each for each in yaml.safe_load_all(plane.kubectl("kustomize", str(tmp_path)))
    }
    secret = found["Secret"]["metadata"]["name"]
    assert re.fullmatch("team-keys-.+", secret)
    spec = found["InferenceService"]["spec"]
    assert spec["model"]["tokenSecretRef"]["name"] == secret
    assert spec["router"]["auth"]["secretRef"]["name"] == secret
    templates = [part["accelerator"]["claimTemplate"] for part in (spec, spec["prefill"])]
    assert templates == ["team-gpus", "team-gpus"]
    (volume,) = spec["prefill"]["template"]["volumes"]
    assert volume["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    assert spec["engine"]["image"] == spec["prefill"]["engine"]["image"] == "reg/engine:2"
    assert (spec["router"]["image"], spec["replicas"]) == ("reg/router:1", 3)
