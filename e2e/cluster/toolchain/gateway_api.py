"""The definitions of the Gateway API, from its Go module, whose checksum Go checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from e2e.cluster.command import run
from e2e.cluster.toolchain.golang import ensure_go

MODULE: Final = "sigs.k8s.io/gateway-api@v1.6.3"
HTTP_ROUTES: Final = "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"


def http_route_definition() -> Path:
    """The file of HTTPRoute's CustomResourceDefinition, downloaded once."""
    found = json.loads(run([ensure_go(), "mod", "download", "-json", MODULE]))
    return Path(found["Dir"]) / HTTP_ROUTES
