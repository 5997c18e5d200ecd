"""install.yaml: manifests/base as one file, with the released images."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import yaml

from e2e.cluster.command import run
from release.manifests import NAMESPACE, ROOT, image_variables
from release.released import Released

HEADER: Final = "# Sluice {version}: kubectl apply -f install.yaml\n"


def install_yaml(kubectl: Path, released: Released) -> str:
    """The text, by `kubectl kustomize`."""
    images = {key: released.reference(name) for key, name in image_variables(ROOT).items()}
    own = images.pop("")
    runbooks = {"SLUICE_RUNBOOK_URL_BASE": released.runbooks} if released.runbooks else {}
    settings = images | runbooks
    environment = [{"name": key, "value": value} for key, value in settings.items()]
    patch = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "sluice-operator", "namespace": NAMESPACE},
        "spec": {
            "template": {
                "spec": {"containers": [{"name": "operator", "image": own, "env": environment}]}
            }
        },
    }
    # kustomize takes resources by relative path only, so the overlay lies beside the base.
    with tempfile.TemporaryDirectory(dir=ROOT / "manifests", prefix=".overlay-") as folder:
        overlay = {"resources": ["../base"], "patches": [{"patch": yaml.safe_dump(patch)}]}
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        return HEADER.format(version=released.version) + run([kubectl, "kustomize", folder])


def crds_yaml() -> str:
    """Both CRDs, for who installs them by themselves."""
    return "---\n".join(path.read_text() for path in sorted((ROOT / "crds").glob("*.yaml")))
