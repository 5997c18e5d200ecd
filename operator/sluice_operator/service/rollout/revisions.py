"""The revisions of a service's pools as they are now: what the roll-out planner starts from.

Pure. Reads Deployments, and the statuses of the service and its pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sluice_operator.api.conditions import UPDATED
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.apply.field_ownership import applied_manifest, applied_spec
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import find
from sluice_operator.conditions.deployments import has_passed_deadline, has_stopped
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    Manifest,
    controller_uid,
    is_being_deleted,
    of_kind,
)
from sluice_operator.manifests.deployments import TEMPLATE, UNTRIED, to_apply
from sluice_operator.manifests.engine import (
    engine_deployment,
    revision,
    revision_of,
)
from sluice_operator.manifests.metadata import Owner, note_of
from sluice_operator.manifests.ownership import is_free, pool_role
from sluice_operator.service.observe import Children
from sluice_operator.service.rollout.pairing import fingerprint_of, fingerprint_of_deployment
from sluice_operator.service.rollout.surge import PoolState, RolloutRevision


def pool_state(children: Children, spec: EnginePoolSpec, config_map: Manifest) -> PoolState:
    """The pool that should be as `spec` says, with all its revisions; `config_map`: the engine's
    file of the desired revision."""
    name = revision(spec)
    pools = [p for p in of_kind(children, ENGINE_POOL) if p["spec"]["role"] == spec.role]
    planned = {name: count for pool in pools for name, count in _planned(pool).items()}
    failed = {name for pool in pools for name in _failed(pool)}
    late = {name for pool in pools for name in _late(pool)}
    waiting = {name: count for pool in pools for name, count in _waiting(pool)}
    revisions: dict[str, RolloutRevision] = {}
    for item in engine_deployments(children, spec.service_name, pools, spec.role):
        if is_being_deleted(item):
            continue
        fingerprint = fingerprint_of_deployment(item, children)
        state = _revision(item, fingerprint, waiting.get(revision_of(item), 0))
        revisions[state.name] = replace(
            state,
            planned=planned.get(state.name, state.replicas),
            stopped=state.stopped or state.name in failed,
            is_late=state.is_late or state.name in late,
            is_leaving=bool(planned) and state.name not in planned,
        )
    desired = revisions.pop(name, RolloutRevision(name, planned=planned.get(name), is_tried=False))
    desired = replace(desired, ready=desired.available, fingerprint=fingerprint_of(config_map))
    return PoolState(spec.role, spec.replicas, desired, tuple(revisions.values()))


def engine_deployments(
    children: Children, service: str, pools: Iterable[Manifest], role: str
) -> Iterator[Manifest]:
    """The Deployments of the `pools` of `role`, and Deployments that these pools will take over."""
    uids = {pool["metadata"]["uid"] for pool in pools}
    for item in of_kind(children, DEPLOYMENT):
        is_taken = pool_role(item) == role and is_free(item, service, uids)
        if controller_uid(item) in uids or is_taken:
            yield item


def pod_changes(children: Children, top: Owner, spec: EnginePoolSpec) -> tuple[str, ...]:
    """Text about a pool whose pods this release would write differently for unchanged inputs;
    empty: it would not."""
    stays = any(desired is not built for built, _, desired in _same_revision(children, top, spec))
    return (f"pool {spec.role}: its pods",) if stays else ()


def replaces_pods(children: Children, top: Owner, spec: EnginePoolSpec) -> bool:
    """Whether a revision that stays gets new pods, e.g. for a new toleration."""
    return any(
        note_of(live, TEMPLATE) != note_of(desired, TEMPLATE)
        for _, live, desired in _same_revision(children, top, spec)
    )


def _same_revision(
    children: Children, top: Owner, spec: EnginePoolSpec
) -> Iterator[tuple[Manifest, Manifest, Manifest]]:
    """The existing Deployment of the revision that `spec` asks for: as this release makes it, the
    live one, and the one to apply. Nothing if there is none."""
    built = engine_deployment(replace(top, name=f"{top.service}-{spec.role}"), spec)
    for live in of_kind(children, DEPLOYMENT):
        if revision_of(live) == revision(spec):
            yield built, live, to_apply(built, applied_manifest(live))


def engines_ready(live: Manifest | None) -> int:
    """How many engines of any revision are ready, as the status of an EnginePool says."""
    revisions = ((live or {}).get("status") or {}).get("revisions") or ()
    return sum(revision["ready"] for revision in revisions)


def _planned(pool: Manifest) -> dict[str, int]:
    """The engines that its service has planned for each revision of a pool."""
    shares = (applied_spec(pool) or {}).get("revisions") or ()
    return {share["name"]: share["replicas"] for share in shares}


def _failed(pool: Manifest) -> tuple[str, ...]:
    """Revision whose engines cannot start, as the pool says."""
    status = pool.get("status") or {}
    updated = find(status, UPDATED)
    if updated is None or updated["status"] != "False" or updated["reason"] in reasons.HEALTHY:
        return ()
    return tuple(entry["name"] for entry in status.get("revisions") or () if entry["current"])


def _late(pool: Manifest) -> tuple[str, ...]:
    """Revision whose engines are not ready within their deadline, as the pool says of its present
    spec. The Deployment itself says so only until it was complete once, even without engines."""
    status = pool.get("status") or {}
    reason = (find(status, UPDATED) or {}).get("reason")
    is_late = reason == reasons.PROGRESS_DEADLINE_EXCEEDED and _is_observed(pool)
    return _failed(pool) if is_late else ()


def _is_observed(live: Manifest) -> bool:
    """Whether an object's status is about its present spec."""
    seen: int = (live.get("status") or {}).get("observedGeneration", 0)
    return seen >= int(live["metadata"].get("generation", 0))


def _waiting(pool: Manifest) -> Iterator[tuple[str, int]]:
    """How many pods of each revision load their model or wait in a queue, as the pool says."""
    for entry in (pool.get("status") or {}).get("revisions") or ():
        yield entry["name"], (entry.get("loading") or 0) + (entry.get("gated") or 0)


def _revision(deployment: Manifest, fingerprint: str, waiting: int) -> RolloutRevision:
    spec, status = deployment["spec"], deployment.get("status") or {}
    replicas = spec.get("replicas", 1)
    seen = _is_observed(deployment)
    counts = (status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas"))
    return RolloutRevision(
        name=revision_of(deployment),
        replicas=replicas,
        ready=status.get("readyReplicas", 0),
        available=status.get("availableReplicas", 0),
        settled=seen and all(count == replicas for count in counts),
        fingerprint=fingerprint,
        stopped=has_stopped(deployment, waiting),
        is_late=seen and has_passed_deadline(deployment, waiting),
        is_tried=not note_of(deployment, UNTRIED),
    )
