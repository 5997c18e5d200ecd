"""Configuration files as immutable ConfigMaps whose names carry the hash of their content."""

from __future__ import annotations

import json
from typing import Final

from sluice_contract.cluster import labels

from sluice_operator.kube.kinds import CONFIG_MAP, Manifest
from sluice_operator.manifests.metadata import ENGINE, Owner, digest

ENGINE_FILE: Final = "engine.json"
ROUTER_FILE: Final = "router.json"


RESOLVED: Final = f"{labels.GROUP}/resolved"
"""Annotation: the settings in an engine's file, with where each is from, as JSON."""


def config_map(owner: Owner, file: str, text: str, component: str, role: str) -> Manifest:
    """A ConfigMap with one file. Changed content makes a new object, so pods never see a change."""
    data = {file: text}
    name = f"{owner.service}-{role}-{digest(data)}"
    return owner.child(CONFIG_MAP, name, component, role) | {"immutable": True, "data": data}


def engine_config_map(owner: Owner, text: str, role: str, resolved: Manifest) -> Manifest:
    """The ConfigMap with an engine's file, and the sources of its settings."""
    manifest = config_map(owner, ENGINE_FILE, text, ENGINE, role)
    note = {RESOLVED: json.dumps(resolved, sort_keys=True, separators=(",", ":"))}
    return manifest | {"metadata": manifest["metadata"] | {"annotations": note}}
