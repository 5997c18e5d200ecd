"""Keys of reconciled objects, and which keys a changed object concerns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Any, Final, NamedTuple

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import FIELD_MANAGER

from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    Kind,
    controller,
)

RECONCILED: Final = (INFERENCE_SERVICE, ENGINE_POOL)
CONDITION: Final = ("type", "status", "reason", "observedGeneration")
"""Fields of a condition that later reconciles read."""
REVISION: Final = ("name", "config", "current")
"""Fields of a revision in a pool's status that later reconciles read."""


class Key(NamedTuple):
    """Names one object of a reconciled kind."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def keys_of(
    kind: Kind, item: Mapping[str, Any], before: Mapping[str, Any] | None = None
) -> frozenset[Key]:
    """The keys to reconcile when `item`, an object of `kind`, has changed or gone. `before`: what
    was known of it, if it only changed."""
    metadata = item["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    if kind == INFERENCE_SERVICE:
        # A pool is not changed itself when `paused` of its service is, which it reads. That holds
        # for pools of a former mode, too.
        pools = (_pool(namespace, name, role) for role in labels.Role)
        return frozenset({Key(kind.kind, namespace, name), *pools})
    # By owner and by labels: if somebody edited one of the two, the other still leads here.
    concerned = _owner(metadata) | _by_labels(metadata)
    if kind != POD and controller(item) is None:
        concerned |= _service_of(metadata)  # the service takes the object over
    if kind == ENGINE_POOL:
        return concerned | {Key(kind.kind, namespace, name), *_service_of(metadata)}
    # A roll-out depends on the available pods of a revision, which no status of a pool reports.
    if kind == DEPLOYMENT and (before is None or _available(before) != _available(item)):
        return concerned | _service_of(metadata)
    return concerned


COUNTS: Final[Mapping[str, Set[str]]] = {
    "": {"drainingReplicas", "readyReplicas", "summary", "updatedReplicas"},
    "accelerators": {"engines"},
    "adapters": {"failed", "loaded", "message"},
    "conditions": {"message"},
    "pools": {"drainingReplicas", "readyReplicas", "replicas", "summary", "updatedReplicas"},
    "revisions": {"gated", "loading", "ready", "replicas"},
    "rollout": {"message"},
}
"""Fields of our statuses that hold numbers of engines or texts for people, by the section that has
them; "": the status itself. `replicas` of the status is no such field, because autoscalers read
it."""
UNREAD: Final = COUNTS[""] | {
    "accelerators", "adapters", "handover", "ledger", "pools", "replicas", "scaling"
}  # fmt: skip
"""Sections of our statuses that no later plan or status of the same object reads. The `adapters` of
an InferenceService are the exception: they are read."""


def without_counts(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status without texts, and with each count reduced to whether it is 0."""
    return {
        key: bool(value) if key in COUNTS[""] else _without(COUNTS.get(key, ()), value)
        for key, value in status.items()
    }


def _without(counts: Collection[str], value: Any) -> Any:
    if isinstance(value, list):
        return [_without(counts, entry) for entry in value]
    if isinstance(value, Mapping):
        return {
            key: bool(part) if key in counts else _without(counts, part)
            for key, part in value.items()
        }
    return value


def differs_in_counts(
    kind: Kind, before: Mapping[str, Any] | None, after: Mapping[str, Any]
) -> bool:
    """Whether a write of our status has changed only what a reconcile of the same object does not
    read: another one would decide and write the same."""
    return before is not None and _read_later(kind, before) == _read_later(kind, after)


def _read_later(kind: Kind, item: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}
    metadata["managedFields"] = [
        entry
        for entry in metadata.get("managedFields") or ()
        if (entry["manager"], entry.get("subresource")) != (FIELD_MANAGER, "status")
    ]
    unread = UNREAD - {"adapters"} if kind == INFERENCE_SERVICE else UNREAD
    counted = item.get("status") or {}
    status = {key: value for key, value in without_counts(counted).items() if key not in unread}
    for key, fields in (("conditions", CONDITION), ("revisions", REVISION)):
        status[key] = [[entry.get(name) for name in fields] for entry in status.get(key) or ()]
    others = {key: value for key, value in item.items() if key not in ("metadata", "status")}
    return {**others, "metadata": metadata, "status": status}


def _available(deployment: Mapping[str, Any]) -> int:
    return int((deployment.get("status") or {}).get("availableReplicas", 0))


def _pool(namespace: str, service: str, role: str) -> Key:
    return Key(ENGINE_POOL.kind, namespace, f"{service}-{role}")


def _owner(metadata: Mapping[str, Any]) -> frozenset[Key]:
    """The controlling owner, when it is of a reconciled kind."""
    kinds = {(kind.api_version, kind.kind) for kind in RECONCILED}
    return frozenset(
        Key(owner["kind"], metadata["namespace"], owner["name"])
        for owner in metadata.get("ownerReferences") or ()
        if owner.get("controller") and (owner["apiVersion"], owner["kind"]) in kinds
    )


def _service_of(metadata: Mapping[str, Any]) -> frozenset[Key]:
    service = (metadata.get("labels") or {}).get(labels.SERVICE)
    if service is None:
        return frozenset()
    return frozenset({Key(INFERENCE_SERVICE.kind, metadata["namespace"], service)})


def _by_labels(metadata: Mapping[str, Any]) -> frozenset[Key]:
    """Keys by labels: of pods, which a ReplicaSet owns, and of children that have lost their
    owner."""
    pod_labels = metadata.get("labels") or {}
    service, role = pod_labels.get(labels.SERVICE), pod_labels.get(labels.ROLE)
    if service is not None and role in set(labels.Role):
        return frozenset({_pool(metadata["namespace"], service, role)})
    return _service_of(metadata)
