"""What a reconcile has seen and what it decided: the values between observing, planning, applying.

Everything here is frozen and built from plain dicts, as the API server sent them. Knows no client:
`observe.py` fills these, the planners read them, `apply.py` carries the plans out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from sluice_contract import labels

from sluice_operator.api.findings import Finding

API_SERVER_PORTS: Final = (443, 6443)
"""Where an API server usually listens. Elsewhere, the operator is told."""

Manifest = dict[str, Any]
"""A Kubernetes object as a plain dict. Treated as read-only once it is inside one of these."""


@dataclass(frozen=True)
class Kind:
    """A resource type, with what a client needs to address it."""

    api_version: str
    kind: str
    plural: str


INFERENCE_SERVICE: Final = Kind(labels.API_VERSION, "InferenceService", "inferenceservices")
ENGINE_POOL: Final = Kind(labels.API_VERSION, "EnginePool", "enginepools")
SERVICE: Final = Kind("v1", "Service", "services")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
POD: Final = Kind("v1", "Pod", "pods")
NODE: Final = Kind("v1", "Node", "nodes")
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
ROLE: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
POD_DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")

SERVICE_CHILDREN: Final = (
    SERVICE_ACCOUNT, ROLE, ROLE_BINDING, CONFIG_MAP, SERVICE, DEPLOYMENT, POD_DISRUPTION_BUDGET,
    NETWORK_POLICY, ENGINE_POOL,
)  # fmt: skip
"""Kinds an InferenceService's plan applies or prunes."""
POOL_CHILDREN: Final = (DEPLOYMENT, POD_DISRUPTION_BUDGET)
"""Kinds an EnginePool's plan applies or prunes."""


@dataclass(frozen=True)
class Images:
    """Container images used where the spec names none."""

    engine: str
    router: str


@dataclass(frozen=True)
class Reference:
    """One object of a namespace; `uid`, when known, is the precondition of its deletion."""

    kind: Kind
    namespace: str
    name: str
    uid: str | None = None


@dataclass(frozen=True)
class Event:
    """An event for a person."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    about: Manifest | None = None
    """The object it is recorded on; None: the reconciled one."""


@dataclass(frozen=True)
class Overwritten:
    """An object that was there, `live`, and has been made what is `desired`."""

    desired: Manifest
    live: Manifest


@dataclass(frozen=True)
class Refusal:
    """Why a spec is not carried out. `field` is the path below the object, e.g. `spec.mode`."""

    reason: str
    field: str
    message: str
    each: tuple[Refusal, ...] = ()
    """All that is wrong, one by one, where there are several; `message` names them too."""

    @property
    def finding(self) -> Finding:
        """The message without the field, which it begins with."""
        return Finding(self.field, self.message.removeprefix(f"{self.field}: "))


@dataclass(frozen=True)
class ServiceObserved:
    """One InferenceService and all that its plan and its status depend on."""

    service: Manifest
    """The InferenceService as read, status included."""
    images: Images
    children: tuple[Manifest, ...] = ()
    """Every object of the kinds in `SERVICE_CHILDREN` that carries the label
    `serving.sluice.dev/service: NAME` in the namespace, whoever owns it (also the Deployments
    that EnginePools own); each with apiVersion and kind filled in."""
    pods: tuple[Manifest, ...] = ()
    """The router's pods."""
    nodes: tuple[Manifest, ...] | None = None
    """None when the operator may not read nodes."""
    foreign: tuple[Manifest, ...] = ()
    """Objects that stand at a name of the plan's and that this service does not control. The
    plan then refuses, instead of taking them over."""
    api_server_ports: tuple[int, ...] = API_SERVER_PORTS
    """Where routers may reach the API server."""


@dataclass(frozen=True)
class PoolObserved:
    """One EnginePool and all that its plan and its status depend on."""

    pool: Manifest
    """The EnginePool as read, status included."""
    service: Manifest | None = None
    """The InferenceService that controls it; None when it is gone."""
    children: tuple[Manifest, ...] = ()
    """Every object of the kinds in `POOL_CHILDREN` with the pool's service and role labels."""
    pods: tuple[Manifest, ...] = ()
    """Engine pods with the pool's service and role labels, of every revision."""


@dataclass(frozen=True)
class Plan:
    """What to write. Level-triggered: equal observations give equal plans."""

    apply: tuple[Manifest, ...] = ()
    """Full desired objects without status, owner references set; to be applied in this order."""
    prune: tuple[Reference, ...] = ()
    """Owned by us and no longer desired; to be deleted after everything was applied."""
    events: tuple[Event, ...] = ()
    """Recorded when this plan is carried out; empty at rest."""
    refusal: Refusal | None = None
    """Set: `apply` and `prune` are empty, what exists stays as it is."""
    paused: bool = False
    """Set: `apply` and `prune` are empty, only status is written."""


def controller_uid(manifest: Manifest) -> str | None:
    """The uid of the object's controlling owner."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def of_kind(manifests: tuple[Manifest, ...], kind: Kind) -> Iterator[Manifest]:
    """The objects of one kind, in the order given."""
    return (m for m in manifests if m.get("kind") == kind.kind)


def reference_to(manifest: Manifest, kinds: tuple[Kind, ...]) -> Reference:
    """The reference that names `manifest`, whose kind is one of `kinds`."""
    kind = next(k for k in kinds if k.kind == manifest["kind"])
    meta = manifest["metadata"]
    return Reference(kind, meta["namespace"], meta["name"], meta.get("uid"))
