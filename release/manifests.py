"""What manifests/ installs: its objects, and the images in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
NAMESPACE: Final = "sluice-system"
"""Where the manifests install."""
Manifest = dict[str, Any]


def documents(path: Path) -> list[Manifest]:
    """The objects of one file."""
    return list(yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader))  # ten times as fast


def operators_own(root: Path) -> Iterator[Manifest]:
    """The objects of manifests/operator, labelled as its kustomization does."""
    folder = root / "manifests" / "operator"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    (labels,) = (each["pairs"] for each in kustomization["labels"])
    for name in kustomization["resources"]:
        for manifest in documents(folder / name):
            _label(manifest, labels)
            if "template" in manifest.get("spec", {}):
                _label(manifest["spec"]["template"], labels)
            for subject in manifest.get("subjects", ()):
                subject["namespace"] = NAMESPACE
            yield manifest


def image_variables(root: Path) -> Mapping[str, str]:
    """Repository of each image by the operator's variable that names it; its own is under ""."""
    (deployment,) = documents(root / "manifests" / "operator" / "deployment.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    named = {"": container["image"]} | {
        each["name"]: each["value"] for each in container["env"] if each["name"].endswith("_IMAGE")
    }
    return {variable: image.rpartition(":")[0] for variable, image in named.items()}


def _label(manifest: Manifest, labels: Mapping[str, str]) -> None:
    metadata = manifest["metadata"]
    metadata["labels"] = {**metadata.get("labels", {}), **labels}
