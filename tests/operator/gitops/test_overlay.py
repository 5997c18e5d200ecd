"""The overlay for GitOps tools is the whole install, and the API server takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.harness.plane import OWN_PLANE

pytestmark = [pytest.mark.apiserver, OWN_PLANE]
MANIFESTS = Path(__file__).parents[3] / "manifests"


def rendered(plane: ApiServer, folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = yaml.safe_load_all(plane.kubectl("kustomize", str(MANIFESTS / folder)))
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def test_it_differs_from_the_base_by_what_argo_cd_has_to_know(plane: ApiServer) -> None:
    base, overlay = rendered(plane, "base"), rendered(plane, "overlays/gitops")
    assert overlay.keys() == base.keys()
    for (kind, _), manifest in overlay.items():
        if kind == "CustomResourceDefinition":
            annotations = manifest["metadata"].pop("annotations")
            assert annotations["argocd.argoproj.io/sync-wave"] == "-1"
            options = annotations["argocd.argoproj.io/sync-options"]
            assert options == "ServerSideApply=true,Prune=false"
    assert overlay == base


def test_the_api_server_takes_it(plane: ApiServer) -> None:
    overlay = str(MANIFESTS / "overlays" / "gitops")
    told = plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", overlay)
    assert "deployment.apps/sluice-operator serverside-applied" in told
