"""Installs CRDs and operator into a cluster, as a person does with `kubectl apply -k`.

Knows how the images of this checkout get their names; knows nothing of what the operator does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from e2e.cluster.progress import Step
from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = "sluice-system"
READY_SECONDS = 180
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


def install_operator(cluster: Cluster, images: Mapping[str, str]) -> None:
    """Applies manifests/base with the images of this checkout and waits until it is available."""
    kubectl = Kubectl(cluster)
    with Step("Installing the CRDs and the operator"):
        manifests = kustomized(kubectl, images)
        kubectl.apply(manifests)
        for crd in ("inferenceservices", "enginepools"):
            kubectl.run("wait", "--for=condition=Established", f"crd/{crd}.serving.sluice.dev")
        kubectl.run(
            "rollout", "status", "deployment/sluice-operator", "-n", NAMESPACE,
            f"--timeout={READY_SECONDS}s", timeout_seconds=READY_SECONDS + 10,
        )  # fmt: skip


def restrict(cluster: Cluster, namespace: str) -> None:
    """Has the API server refuse every pod in the namespace that the Pod Security Standard
    `restricted` forbids; not in a cluster that others use as well."""
    if cluster.kind != "current":
        words = ("label", "namespace", namespace, RESTRICTED, "--overwrite")
        Kubectl(cluster).run(*words)


def kustomized(kubectl: Kubectl, images: Mapping[str, str]) -> str:
    """The base with an overlay that names `images` (operator, router, fetch, engine, gpu_engine).
    Without gpu_engine, pools with GPUs get the image for CPUs, whose engines report what they
    lack."""
    named = {"gpu_engine": images["engine"], **images}
    environment = [
        {"name": f"SLUICE_{name.upper()}_IMAGE", "value": named[name]}
        for name in ("engine", "gpu_engine", "router", "fetch")
    ]
    container = {"name": "operator", "image": images["operator"], "env": environment}
    patch = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "sluice-operator", "namespace": NAMESPACE},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    # kustomize takes resources by relative path only, so the overlay lies beside the base.
    with tempfile.TemporaryDirectory(dir=ROOT / "manifests", prefix=".overlay-") as folder:
        overlay = {"resources": ["../base"], "patches": [{"path": "images.yaml"}]}
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        Path(folder, "images.yaml").write_text(yaml.safe_dump(patch))
        return kubectl.run("kustomize", folder)
