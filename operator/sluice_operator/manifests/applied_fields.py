"""An annotation that says which fields of a spec its owner has applied, whatever their values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sluice_contract.cluster import labels

from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.digest import digest

APPLIED_FIELDS: Final = f"{labels.GROUP}/applied-fields"
"""Annotation: hash of which fields the owner has applied, whatever their values."""


def with_applied_fields(manifest: Manifest) -> Manifest:
    """`manifest` with the hash of its spec's fields as one more annotation."""
    metadata = manifest["metadata"]
    note = {APPLIED_FIELDS: fields_hash(manifest["spec"])}
    annotations = metadata.get("annotations", {}) | note
    return manifest | {"metadata": metadata | {"annotations": annotations}}


def fields_hash(spec: Any, atomic: frozenset[str] = frozenset()) -> str:
    """A hash of which fields there are in `spec`; `atomic`: the names of maps that are owned as a
    whole, and that the API server may complete."""
    return digest(_structure(spec, atomic))


def _structure(value: Any, atomic: frozenset[str]) -> Any:
    """The fields without their values, and without empty ones, which may or may not be stored."""
    if isinstance(value, Mapping):
        return {
            key: 0 if key in atomic else _structure(below, atomic)
            for key, below in value.items()
            if below not in ({}, [], None)
        }
    if isinstance(value, list):
        items = (_structure(item, atomic) for item in value)
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    return 0
