"""Who decides how many engines a pool has, and how that passes from one to another.

Pure. The number is `spec.replicas` of the EnginePool. It has one owner at a time: the
InferenceService, whose manifest then contains it; the operator's autoscaler; or whoever writes the
pool's scale subresource. The next owner holds the live value before the former lets go of it, as
a field that nobody owns falls back to its default. Until somebody has scaled the pool, the
operator holds the value for him, as a field manager of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sluice_contract.labels import FIELD_MANAGER, Role

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.field_ownership import managers_of
from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.kube.kinds import Manifest


class ReplicasOwner(StrEnum):
    """Who decides how many engines a pool has."""

    SPEC = "Spec"
    """The InferenceService."""
    OPERATOR = "Operator"
    """The operator's autoscaler."""
    EXTERNAL = "External"
    """A HorizontalPodAutoscaler, KEDA, a person: whoever scales the EnginePool."""


@dataclass(frozen=True)
class Replicas:
    """The number of engines of a pool, and how it reaches the EnginePool."""

    count: int
    is_applied: bool = True
    """Whether the number is a part of what the InferenceService applies."""
    take_over: bool = False
    """To be held by `REPLICAS_MANAGER` before the InferenceService lets go of it."""
    let_go: bool = False
    """No longer to be held by `REPLICAS_MANAGER`, once the InferenceService has applied it."""


def replicas_owner(spec: InferenceServiceSpec, role: Role) -> ReplicasOwner:
    """Who decides how many engines the pool of `role` has."""
    if spec.pool(role).autoscaling is None:
        return ReplicasOwner.SPEC
    external = spec.autoscaling is not None and spec.autoscaling.provider == "External"
    return ReplicasOwner.EXTERNAL if external else ReplicasOwner.OPERATOR


def plan_replicas(
    spec: InferenceServiceSpec, role: Role, live: Manifest | None, first: int
) -> Replicas:
    """The replicas of the pool of `role`; `live` is its EnginePool. A new one is always made with
    the number to start from, `first`, and handed over then."""
    owner = replicas_owner(spec, role)
    managers = managers_of(live, "replicas") if live else frozenset()
    if live is None or owner is ReplicasOwner.SPEC:
        return Replicas(first, let_go=REPLICAS_MANAGER in managers)
    holders = managers - {FIELD_MANAGER}
    held = REPLICAS_MANAGER in holders if owner is ReplicasOwner.OPERATOR else bool(holders)
    return Replicas(live["spec"]["replicas"], is_applied=False, take_over=not held)
