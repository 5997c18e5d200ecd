"""Which objects without an owner are a service's children: by labels and name, which backups keep.

Pure. Objects that another living controller has are not looked at here: the observers leave them
out. A child whose owner is gone is deleted by the garbage collector, unless it is taken over
first; one without any owner stays for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role

from sluice_operator.kube.kinds import (
    POD,
    POOL_CHILDREN,
    Manifest,
    controller,
    controller_uid,
    is_being_deleted,
)
from sluice_operator.manifests.metadata import Owner

_OF_POOLS: Final = frozenset(kind.kind for kind in POOL_CHILDREN)
_OUR_ANNOTATIONS: Final = f"{labels.GROUP}/"
_NAMES_SHOWN: Final = 4


def is_unowned(child: Manifest, service: str) -> bool:
    """Whether a child of the InferenceService `service` has lost its owner reference: orphaned, or
    restored without it."""
    return controller(child) is None and _is_child(child, service)


def is_free(child: Manifest, service: str, uids: Set[str | None]) -> bool:
    """Whether a child of `service` may be taken over: its controller, if any, is not in `uids`."""
    return controller_uid(child) not in uids and _is_child(child, service)


def pool_role(child: Manifest) -> str | None:
    """The role of the EnginePool whose plan a child is part of; None: its service's."""
    role = (child["metadata"].get("labels") or {}).get(labels.ROLE)
    return role if child["kind"] in _OF_POOLS and role in set(Role) else None


def owners_with(child: Manifest, owner: Owner) -> tuple[Manifest, ...]:
    """The owner references of `child` once `owner` controls it. References to others stay if they
    do not control it."""
    references = child["metadata"].get("ownerReferences") or ()
    others = (
        reference
        for reference in references
        if not reference.get("controller") and reference["uid"] != owner.uid
    )
    return (*others, owner.reference())


def owned_by(manifest: Manifest, owner: Owner) -> Manifest:
    """`manifest` with `owner` as its only owner."""
    references = {} if owner.uid is None else {"ownerReferences": [owner.reference()]}
    return manifest | {"metadata": manifest["metadata"] | references}


def restored(live: Manifest) -> Manifest:
    """The whole live object, without annotations of others. It is applied where no record says what
    was applied before."""
    metadata = {key: live["metadata"][key] for key in ("name", "namespace", "labels")}
    notes = live["metadata"].get("annotations") or {}
    ours = {key: value for key, value in notes.items() if key.startswith(_OUR_ANNOTATIONS)}
    head = {"apiVersion": live["apiVersion"], "kind": live["kind"]}
    return head | {"metadata": metadata | {"annotations": ours}, "spec": live["spec"]}


def listed(objects: Iterable[Manifest]) -> str:
    """Kinds and names of objects, for people."""
    names = sorted(f"{item.get('kind', POD.kind)} {item['metadata']['name']}" for item in objects)
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _is_child(child: Manifest, service: str) -> bool:
    """Whether labels and name match those of children of `service`."""
    metadata = child["metadata"]
    marks = {labels.MANAGED_BY: labels.MANAGED_BY_OPERATOR, labels.SERVICE: service}
    is_named = metadata["name"] == service or metadata["name"].startswith(f"{service}-")
    is_marked = marks.items() <= (metadata.get("labels") or {}).items()
    return is_named and is_marked and not is_being_deleted(child)
