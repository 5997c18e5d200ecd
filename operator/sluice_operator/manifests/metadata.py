"""Metadata of every child: names, labels, the owner, and the hash of what was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_contract.cluster import labels

from sluice_operator.kube.kinds import Kind, Manifest
from sluice_operator.manifests.digest import digest

DESIRED_HASH: Final = f"{labels.GROUP}/desired-hash"
"""Annotation: shows from the live object alone whether it was made from the present plan."""

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
            metadata["ownerReferences"] = [self._reference()]
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}

    def _reference(self) -> Manifest:
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
    """Whether `live` was made from what is desired now; both stamped."""
    return live is not None and stamp_of(live) == stamp_of(desired)


def stamp_of(manifest: Manifest) -> str | None:
    """The hash that `stamped` added."""
    stamp: str | None = (manifest["metadata"].get("annotations") or {}).get(DESIRED_HASH)
    return stamp
