"""Kubernetes objects as plain dicts, the kinds the operator knows, and what names an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_contract.cluster import labels

Manifest = dict[str, Any]
"""A Kubernetes object as a plain dict, treated as read-only."""


@dataclass(frozen=True)
class Kind:
    """A resource type, with what a client needs to address it."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        """Empty for the kinds of Kubernetes' core."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """API version within the group, `v1` for example."""
        return self.api_version.rpartition("/")[2]


INFERENCE_SERVICE: Final = Kind(labels.API_VERSION, "InferenceService", "inferenceservices")
ENGINE_POOL: Final = Kind(labels.API_VERSION, "EnginePool", "enginepools")
SERVICE: Final = Kind("v1", "Service", "services")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
SECRET: Final = Kind("v1", "Secret", "secrets")
POD: Final = Kind("v1", "Pod", "pods")
NODE: Final = Kind("v1", "Node", "nodes")
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
CONTROLLER_REVISION: Final = Kind("apps/v1", "ControllerRevision", "controllerrevisions")
ROLE: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
JOB: Final = Kind("batch/v1", "Job", "jobs")
PERSISTENT_VOLUME_CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
POD_DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD_MONITOR: Final = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
PROMETHEUS_RULE: Final = Kind("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules")
HTTP_ROUTE: Final = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
INFERENCE_POOL: Final = Kind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools")

SERVICE_CHILDREN: Final = (
    SERVICE_ACCOUNT, ROLE, ROLE_BINDING, CONFIG_MAP, SERVICE, DEPLOYMENT, POD_DISRUPTION_BUDGET,
    NETWORK_POLICY, PERSISTENT_VOLUME_CLAIM, JOB, ENGINE_POOL, CONTROLLER_REVISION,
)  # fmt: skip
"""Kinds an InferenceService's plan applies or prunes."""
OPTIONAL_CHILDREN: Final = (POD_MONITOR, PROMETHEUS_RULE, INFERENCE_POOL, HTTP_ROUTE)
"""Further kinds of an InferenceService's plan, where the cluster has them."""
POOL_CHILDREN: Final = (DEPLOYMENT, POD_DISRUPTION_BUDGET)
"""Kinds an EnginePool's plan applies or prunes."""


@dataclass(frozen=True)
class Reference:
    """One object of a namespace; `uid`, when known, is the precondition of its deletion."""

    kind: Kind
    namespace: str
    name: str
    uid: str | None = None


def controller(manifest: Mapping[str, Any]) -> Manifest | None:
    """The object's reference to its controlling owner."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def controller_uid(manifest: Manifest) -> str | None:
    """The uid of the object's controlling owner."""
    owner = controller(manifest)
    return owner["uid"] if owner else None


def of_kind(manifests: tuple[Manifest, ...], kind: Kind) -> Iterator[Manifest]:
    """The objects of one kind, in the order given."""
    return (m for m in manifests if m.get("kind") == kind.kind)


def reference_to(manifest: Manifest, kinds: tuple[Kind, ...]) -> Reference:
    """The reference that names `manifest`, whose kind is one of `kinds`."""
    kind = next(k for k in kinds if k.kind == manifest["kind"])
    meta = manifest["metadata"]
    return Reference(kind, meta["namespace"], meta["name"], meta.get("uid"))


def is_being_deleted(item: Manifest) -> bool:
    """Whether somebody has deleted the object, which may still wait for finalizers."""
    return item["metadata"].get("deletionTimestamp") is not None
