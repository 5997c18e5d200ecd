"""Metadata of every child: names, labels, the owner, and hashes of the applied manifest.

Equal values have equal hashes. One hash covers the whole manifest, another one only the set of
fields that its owner applied.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_contract.cluster import labels

from sluice_operator.kube.kinds import Kind, Manifest

DESIRED_HASH: Final = f"{labels.GROUP}/desired-hash"
"""Annotation: shows from the live object alone whether it was made from the present plan."""
APPLIED_FIELDS: Final = f"{labels.GROUP}/applied-fields"
"""Annotation: hash of the set of fields that the owner has applied, without their values."""
DIGITS: Final = 10
ENGINE: Final = "engine"
ROUTER: Final = "router"
HISTORY: Final = "history"


@dataclass(frozen=True)
class Owner:
    """The object a child belongs to. Without a uid (no cluster) children carry no reference."""

    kind: Kind
    namespace: str
    name: str
    uid: str | None
    service: str
    """Name of the InferenceService at the top."""

    def child(self, kind: Kind, name: str, component: str, role: str | None = None) -> Manifest:
        """The head of a child: apiVersion, kind and metadata."""
        metadata: Manifest = {
            "name": name,
            "namespace": self.namespace,
            "labels": child_labels(self.service, component, role),
        }
        if self.uid is not None:
            metadata["ownerReferences"] = [self.reference()]
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}

    def reference(self) -> Manifest:
        """The owner reference of its children, which it controls."""
        return {
            "apiVersion": self.kind.api_version,
            "kind": self.kind.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def owner(kind: Kind, manifest: Manifest, service: str) -> Owner:
    """`manifest`, an object of `kind`, as the owner of its children."""
    meta = manifest["metadata"]
    return Owner(kind, meta.get("namespace", "default"), meta["name"], meta.get("uid"), service)


def child_labels(service: str, component: str, role: str | None = None) -> dict[str, str]:
    """The labels of a child of the InferenceService `service`."""
    child = {
        labels.NAME: f"{labels.PART_OF_SLUICE}-{component}",
        labels.INSTANCE: service,
        labels.COMPONENT: component,
        labels.PART_OF: labels.PART_OF_SLUICE,
        labels.MANAGED_BY: labels.MANAGED_BY_OPERATOR,
        labels.SERVICE: service,
    }
    return child | ({labels.ROLE: str(role)} if role else {})


def selector_labels(service: str, role: str) -> dict[str, str]:
    """The labels that select the pods of one role, of every revision."""
    return {labels.SERVICE: service, labels.ROLE: str(role)}


def stamped(manifest: Manifest) -> Manifest:
    """`manifest` with the hash of itself as an annotation."""
    stamp = {DESIRED_HASH: digest(manifest)}
    return manifest | {"metadata": manifest["metadata"] | {"annotations": stamp}}


def note_of(manifest: Manifest, annotation: str) -> str:
    """The value of one of our annotations; empty when it is not there."""
    return str((manifest["metadata"].get("annotations") or {}).get(annotation, ""))


def is_current(desired: Manifest, live: Manifest | None) -> bool:
    """Whether `live` was made from the present `desired`; both stamped."""
    return live is not None and stamp_of(live) == stamp_of(desired)


def stamp_of(manifest: Manifest) -> str | None:
    """The hash that `stamped` added."""
    stamp: str | None = (manifest["metadata"].get("annotations") or {}).get(DESIRED_HASH)
    return stamp


def digest(value: Any) -> str:
    """Ten hexadecimal digits of the SHA-256 of `value`'s canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


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
