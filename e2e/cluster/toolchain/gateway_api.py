"""The definitions of the Gateway API and of its Inference Extension, from their Go modules, whose
checksums Go checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.toolchain.golang import ensure_go

MODULE: Final = "sigs.k8s.io/gateway-api@v1.6.3"
HTTP_ROUTES: Final = "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"

EXTENSION: Final = "sigs.k8s.io/gateway-api-inference-extension@v1.5.0"
EXTENSION_SUM: Final = "h1:w9Awt60cmI1vM7Y6N81h8wDCBP0WkmxpdI7GKY0v070="
EXTENSION_BEFORE: Final = "sigs.k8s.io/gateway-api-inference-extension@v1.0.0"
"""The first release with v1 of InferencePool."""
EXTENSION_BEFORE_SUM: Final = "h1:GsHvlu1Cn1t6+vrHoPdNNlpwKxf/y1HuQSlUjd58Ds8="
INFERENCE_POOLS: Final = "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"


def http_route_definition() -> Path:
    """The file of HTTPRoute's CustomResourceDefinition, downloaded once."""
    return _module(MODULE) / HTTP_ROUTES


def inference_pool_definition(*, first_release: bool = False) -> Path:
    """The file of InferencePool's CustomResourceDefinition, downloaded once."""
    if first_release:
        return _module(EXTENSION_BEFORE, EXTENSION_BEFORE_SUM) / INFERENCE_POOLS
    return _module(EXTENSION, EXTENSION_SUM) / INFERENCE_POOLS


def _module(module: str, checksum: str | None = None) -> Path:
    downloaded = json.loads(run([ensure_go(), "mod", "download", "-json", module]))
    if checksum not in (None, downloaded["Sum"]):
        raise ClusterError(f"{module} has the checksum {downloaded['Sum']}, not {checksum}")
    return Path(downloaded["Dir"])
