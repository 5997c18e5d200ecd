"""Configuration files as immutable ConfigMaps whose names carry the hash of their content."""

from __future__ import annotations

from typing import Final

from sluice_operator.kube.kinds import CONFIG_MAP, Manifest
from sluice_operator.manifests.metadata import Owner, digest

ENGINE_FILE: Final = "engine.json"
ROUTER_FILE: Final = "router.json"


def config_map(owner: Owner, file: str, text: str, component: str, role: str) -> Manifest:
    """A ConfigMap with one file. Changed content makes a new object, so pods never see a change."""
    data = {file: text}
    name = f"{owner.service}-{role}-{digest(data)}"
    return owner.child(CONFIG_MAP, name, component, role) | {"immutable": True, "data": data}
