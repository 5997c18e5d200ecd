"""EnginePool → one Deployment for the revision it asks for, and which older ones may go.

Pure. A new revision comes up beside the old one; an old one that serves stays until the new one
is complete, an old one that serves nothing goes at once. A pool that somebody has edited is not
carried out: what is below it stays as it is until its InferenceService has set it back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sluice_contract import labels

from sluice_operator import reasons
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.deployments import Progress, progress
from sluice_operator.manifests.disruption import disruption_budget
from sluice_operator.manifests.engine import engine_deployment, revision
from sluice_operator.manifests.metadata import ENGINE, is_current, owner
from sluice_operator.observed import (
    DEPLOYMENT,
    ENGINE_POOL,
    POOL_CHILDREN,
    Event,
    Manifest,
    Plan,
    PoolObserved,
    Reference,
    Refusal,
    controller_uid,
    of_kind,
    reference_to,
)
from sluice_operator.owned import applied_spec, edits
from sluice_operator.pod_checks import is_ready


@dataclass(frozen=True)
class PoolPlan(Plan):
    """The plan of an EnginePool."""

    spec: EnginePoolSpec | None = None
    """None when the spec cannot be read."""
    revision: str = ""
    """The revision that the spec asks for."""
    deployment: Manifest | None = None
    """Its Deployment."""
    progress: Progress | None = None
    """How far that Deployment has come."""
    edited: str = ""
    """Set: `apply` and `prune` are empty, because the pool is not what its InferenceService has
    applied. Says what was edited, by whom, and what is waited for."""


def plan_pool(observed: PoolObserved) -> PoolPlan:
    """What the children of an EnginePool should be."""
    if is_leaving(observed):
        return PoolPlan()
    try:
        spec = parse(EnginePoolSpec, observed.pool.get("spec") or {}, "spec")
    except InvalidSpecError as error:
        message = "; ".join(map(str, error.findings))
        return PoolPlan(refusal=Refusal("InvalidSpec", error.findings[0].field, message))
    if observed.service is None:
        return PoolPlan(refusal=_orphaned(spec), spec=spec)
    applied = applied_spec(observed.pool)
    if applied is None:
        return _edited(observed.pool, spec)
    plan = _desired(observed, EnginePoolSpec.model_validate(applied))
    if (observed.service.get("spec") or {}).get("paused"):
        return replace(plan, apply=(), prune=(), events=(), paused=True)
    return plan


def is_leaving(observed: PoolObserved) -> bool:
    """Whether the pool is being deleted, or will be because its service is gone."""
    if observed.pool["metadata"].get("deletionTimestamp"):
        return True
    return observed.service is None and controller_uid(observed.pool) is not None


def _edited(pool: Manifest, spec: EnginePoolSpec) -> PoolPlan:
    what = ", ".join(edits(pool)) or "a field was removed"
    waits = f"nothing follows from it until InferenceService {spec.service_name} has set it back"
    known = (pool.get("status") or {}).get("revisions") or ()
    serving = next((entry["name"] for entry in known if entry["current"]), "")
    return PoolPlan(spec=spec, revision=serving, edited=f"the pool was edited ({what}); {waits}")


def _desired(observed: PoolObserved, spec: EnginePoolSpec) -> PoolPlan:
    parent = owner(ENGINE_POOL, observed.pool, spec.service_name)
    deployment = engine_deployment(parent, spec)
    budget = disruption_budget(parent, parent.name, ENGINE, spec.role)
    live = live_deployment(observed, deployment)
    reached = progress(deployment, live)
    prune = _left_over(observed, (deployment, budget), reached)
    return PoolPlan(
        apply=(deployment, budget),
        prune=prune,
        events=(*_started(observed, spec, deployment, live), *_removed(prune)),
        spec=spec,
        revision=revision(spec),
        deployment=deployment,
        progress=reached,
    )


def live_deployment(observed: PoolObserved, desired: Manifest) -> Manifest | None:
    """The live Deployment with the name of `desired`."""
    name = desired["metadata"]["name"]
    found = of_kind(observed.children, DEPLOYMENT)
    return next((d for d in found if d["metadata"]["name"] == name), None)


def _left_over(
    observed: PoolObserved, wanted: tuple[Manifest, ...], reached: Progress
) -> tuple[Reference, ...]:
    uid = observed.pool["metadata"].get("uid")
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
    return tuple(
        reference_to(child, POOL_CHILDREN)
        for child in observed.children
        if uid is not None
        and controller_uid(child) == uid
        and (child["kind"], child["metadata"]["name"]) not in names
        and not child["metadata"].get("deletionTimestamp")
        and (reached.complete or not _serves(observed, child))
    )


def _serves(observed: PoolObserved, child: Manifest) -> bool:
    """Whether a Deployment has an engine that answers."""
    if child["kind"] != DEPLOYMENT.kind:
        return False
    name = (child["metadata"].get("labels") or {}).get(labels.REVISION)
    return any(is_ready(pod) and revision_of(pod) == name for pod in observed.pods)


def revision_of(pod: Manifest) -> str | None:
    """The revision an engine pod belongs to."""
    found: str | None = (pod["metadata"].get("labels") or {}).get(labels.REVISION)
    return found


def _started(
    observed: PoolObserved, spec: EnginePoolSpec, desired: Manifest, live: Manifest | None
) -> tuple[Event, ...]:
    name = desired["metadata"]["name"]
    if live is None:
        others = any(True for _ in of_kind(observed.children, DEPLOYMENT))
        text = f"Deployment {name}, replicas: {spec.replicas}"
        text += "; the former revision stays until it is ready." if others else "."
        return (Event("Normal", reasons.ROLLING_OUT if others else "Created", text),)
    before = live["spec"].get("replicas")
    if before == spec.replicas or is_current(desired, live):
        return ()
    text = f"Replicas from {before} to {spec.replicas} ({spec.replicas_place})."
    return (Event("Normal", "Scaled", text),)


def _removed(prune: tuple[Reference, ...]) -> tuple[Event, ...]:
    return tuple(
        Event("Normal", "Draining", f"Removed {ref.kind.kind} {ref.name}; its engines drain.")
        for ref in prune
        if ref.kind == DEPLOYMENT
    )


def _orphaned(spec: EnginePoolSpec) -> Refusal:
    name = spec.service_name
    return Refusal(
        "Orphaned",
        "spec.serviceName",
        f"spec.serviceName: there is no InferenceService {name} that controls this pool",
    )
