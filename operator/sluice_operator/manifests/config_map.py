"""Configuration files as immutable ConfigMaps whose names carry the hash of their content."""

from __future__ import annotations

from typing import Final

from sluice_operator.digest import digest
from sluice_operator.manifests.metadata import Owner
from sluice_operator.observed import CONFIG_MAP, Manifest

ENGINE_FILE: Final = "engine.json"
ROUTER_FILE: Final = "router.json"


def config_map(owner: Owner, file: str, text: str, component: str, role: str) -> Manifest:
    """A ConfigMap with one file. Another content is another object, so pods never see a change."""
    data = {file: text}
    name = f"{owner.service}-{role}-{digest(data)}"
    return owner.child(CONFIG_MAP, name, component, role) | {"immutable": True, "data": data}
