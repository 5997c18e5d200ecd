"""What manifests/ installs: where, and the images of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
NAMESPACE: Final = "sluice-system"
"""Where the manifests install."""


def image_variables(root: Path) -> Mapping[str, str]:
    """Repository of each image by the operator's variable that names it; its own is under ""."""
    deployment = yaml.safe_load((root / "manifests/operator/deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    named = {"": container["image"]} | {
        each["name"]: each["value"] for each in container["env"] if each["name"].endswith("_IMAGE")
    }
    return {variable: image.rpartition(":")[0] for variable, image in named.items()}
