"""EnginePool → a Deployment for each revision that the service's roll-out gives engines to.

Pure. `service/rollout` plans the revisions and their engines for all pools of the service, and
writes them into the pool's spec; they are carried out here. A pool that somebody has edited is not
carried out: its children stay until its InferenceService has reverted the edit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.pools import replicas_path
from sluice_operator.apply.field_ownership import applied_manifest, applied_spec, edits
from sluice_operator.apply.plan import Event, Identity, Plan, identity
from sluice_operator.conditions import reasons
from sluice_operator.conditions.deployments import DeploymentProgress, progress
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    POOL_CHILDREN,
    Manifest,
    Reference,
    controller_uid,
    is_being_deleted,
    of_kind,
    reference_to,
)
from sluice_operator.manifests.deployments import to_apply, with_replicas, with_trial
from sluice_operator.manifests.disruption import disruption_budget
from sluice_operator.manifests.engine import (
    engine_deployment,
    revision,
    revision_of,
)
from sluice_operator.manifests.metadata import ENGINE, Owner, is_current, owner
from sluice_operator.manifests.ownership import is_free, is_unowned, owned_by, restored
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.validation.errors import Refusal

OWN_REPLICAS: Final = "spec.replicas of the EnginePool"


@dataclass(frozen=True)
class PoolChildren(Plan):
    """The plan of an EnginePool."""

    spec: EnginePoolSpec | None = None
    """None when the spec cannot be read."""
    revision: str = ""
    """The revision that the spec asks for."""
    deployment: Manifest | None = None
    """Deployment of the desired revision."""
    progress: DeploymentProgress | None = None
    """How far that Deployment has come."""
    replicas_place: str = ""
    """Where a user sets the number of engines, in words."""
    edited: str = ""
    """Set: `apply` and `prune` are empty, because the pool is not what its InferenceService has
    applied. Says what was edited, by whom, and what is waited for."""


def plan_pool(observed: PoolObserved) -> PoolChildren:
    """Plan of an EnginePool's children."""
    if is_leaving(observed):
        return PoolChildren()
    try:
        spec = parse(EnginePoolSpec, observed.pool.get("spec") or {}, "spec")
    except InvalidSpecError as error:
        message = "; ".join(map(str, error.findings))
        return PoolChildren(refusal=Refusal("InvalidSpec", error.findings[0].field, message))
    if observed.service is None:
        return PoolChildren(refusal=_orphaned(spec), spec=spec)
    applied = applied_spec(observed.pool)
    if applied is None:
        return _edited(observed.pool, spec)
    plan = _desired(observed, applied)
    if (observed.service.get("spec") or {}).get("paused"):
        return replace(plan, apply=(), prune=(), events=(), paused=True)
    return plan


def is_leaving(observed: PoolObserved) -> bool:
    """Whether the pool is being deleted, or will be because its service is gone."""
    if observed.pool["metadata"].get("deletionTimestamp"):
        return True
    return observed.service is None and controller_uid(observed.pool) is not None


def _edited(pool: Manifest, spec: EnginePoolSpec) -> PoolChildren:
    what = ", ".join(edits(pool)) or "a field was removed"
    waits = f"nothing follows from it until InferenceService {spec.service_name} has set it back"
    revisions = (pool.get("status") or {}).get("revisions") or ()
    serving = next((entry["name"] for entry in revisions if entry["current"]), "")
    return PoolChildren(
        spec=spec, revision=serving, edited=f"the pool was edited ({what}); {waits}"
    )


def _desired(observed: PoolObserved, applied: Manifest) -> PoolChildren:
    # Replicas that the InferenceService does not set belong to the scaler of the pool.
    spec = EnginePoolSpec.model_validate({"replicas": observed.pool["spec"]["replicas"]} | applied)
    path = _replicas_path(observed, spec) if "replicas" in applied else None
    place = f"{path} of InferenceService {spec.service_name}" if path else OWN_REPLICAS
    parent = owner(ENGINE_POOL, observed.pool, spec.service_name)
    built = with_replicas(engine_deployment(parent, spec), _engines(spec))
    live = live_deployment(observed, built)
    kept = to_apply(built, applied_manifest(live) if live else None)
    deployment = with_trial(kept, live)
    budget = disruption_budget(parent, parent.name, ENGINE, spec.role)
    former = tuple(_former(observed, spec, parent))
    prune = _left_over(observed, (deployment, budget), spec)
    return PoolChildren(
        apply=(deployment, *former, budget),
        prune=prune,
        events=(*_started(observed, spec, deployment, live, path), *_removed(prune)),
        spec=spec,
        replicas_place=place,
        paths={identity(deployment): {"spec.replicas": path}} if path else {},
        revision=revision(spec),
        deployment=deployment,
        progress=progress(deployment, live),
    )


def _replicas_path(observed: PoolObserved, spec: EnginePoolSpec) -> str:
    return replicas_path((observed.service or {}).get("spec") or {}, spec.role)


def _engines(spec: EnginePoolSpec) -> int:
    """Engines of the desired revision: all, unless others have to go first or its roll-out has
    stopped."""
    shares = {share.name: share.replicas for share in spec.revisions or ()}
    if not spec.in_place and len(shares) < 2:
        return spec.replicas
    return min(spec.replicas, shares.get(revision(spec), spec.replicas))


def live_deployment(observed: PoolObserved, desired: Manifest) -> Manifest | None:
    """The live Deployment with the name of `desired`."""
    name = desired["metadata"]["name"]
    deployments = of_kind(observed.children, DEPLOYMENT)
    return next((d for d in deployments if d["metadata"]["name"] == name), None)


def _former(observed: PoolObserved, spec: EnginePoolSpec, parent: Owner) -> Iterator[Manifest]:
    """Deployments of other revisions that the service plans to keep, as they were applied, with
    their numbers of engines. A Deployment without a record of what was applied, as after a restore,
    is applied as it is."""
    shares = {share.name: share.replicas for share in spec.revisions or ()}
    for live in of_kind(observed.children, DEPLOYMENT):
        name = revision_of(live)
        if name in shares.keys() - {revision(spec)} and _is_taken(observed, live):
            applied = owned_by(applied_manifest(live) or restored(live), parent)
            yield with_trial(with_replicas(applied, shares[name]), live)


def _left_over(
    observed: PoolObserved, kept: tuple[Manifest, ...], spec: EnginePoolSpec
) -> tuple[Reference, ...]:
    """Children that the pool controls, or has lost, and the service no longer plans. Without a plan
    of the service, nothing is removed."""
    planned, wanted_revision = {share.name for share in spec.revisions or ()}, revision(spec)
    if wanted_revision not in planned:
        return ()
    former = planned - {wanted_revision}
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in kept}
    return tuple(
        reference_to(child, POOL_CHILDREN)
        for child in observed.children
        if _is_ours(observed, child)
        and (child["kind"], child["metadata"]["name"]) not in names
        and not (child["kind"] == DEPLOYMENT.kind and revision_of(child) in former)
    )


def _is_ours(observed: PoolObserved, child: Manifest) -> bool:
    """Whether a child belongs to the pool, so that the plan may remove it."""
    uid, service = observed.pool["metadata"].get("uid"), observed.pool["spec"]["serviceName"]
    if uid is None or is_being_deleted(child):
        return False
    return controller_uid(child) == uid or is_unowned(child, service)


def _is_taken(observed: PoolObserved, child: Manifest) -> bool:
    """Whether a child belongs to the pool, or is taken over before the garbage collector comes."""
    uid, service = observed.pool["metadata"].get("uid"), observed.pool["spec"]["serviceName"]
    return _is_ours(observed, child) or (uid is not None and is_free(child, service, {uid}))


def _started(
    observed: PoolObserved,
    spec: EnginePoolSpec,
    desired: Manifest,
    live: Manifest | None,
    path: str | None,
) -> tuple[Event, ...]:
    """Events about a new Deployment, or one with another number of engines. A number set by the
    InferenceService gets an event that names its field `path`."""
    name = desired["metadata"]["name"]
    if live is None:
        others = any(True for _ in of_kind(observed.children, DEPLOYMENT))
        text = f"Deployment {name}, replicas: {spec.replicas}"
        text += "; the former revision stays until it is ready." if others else "."
        reason = reasons.ROLLING_OUT if others else "Created"
        return (Event("Normal", reason, text, written=(identity(desired),)),)
    before = live["spec"].get("replicas")
    if path is not None or before == spec.replicas or is_current(desired, live):
        return ()
    text = f"Replicas from {before} to {spec.replicas} ({OWN_REPLICAS})."
    return (Event("Normal", "Scaled", text, written=(identity(desired),)),)


def _removed(prune: tuple[Reference, ...]) -> tuple[Event, ...]:
    return tuple(
        Event(
            "Normal",
            "Draining",
            f"Removed {ref.kind.kind} {ref.name}; its engines drain.",
            written=(Identity(ref.kind.kind, ref.name),),
        )
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
