"""What an InferenceService reports: one Ready to wait for, and what each part contributes.

Pure; `now` is only used for transitions. What is below a pool it takes from the EnginePool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.status import PoolSummary
from sluice_operator.conditions import (
    PROGRESSING,
    READY,
    RECONCILING,
    STALLED,
    STALLING,
    Check,
    apply_failed,
    conditions,
    find,
)
from sluice_operator.deployments import progress
from sluice_operator.errors import ApiError
from sluice_operator.manifests.metadata import is_current
from sluice_operator.observed import (
    DEPLOYMENT,
    ENGINE_POOL,
    Kind,
    Manifest,
    Refusal,
    ServiceObserved,
    of_kind,
)
from sluice_operator.pod_checks import first_failure, is_ready
from sluice_operator.pool.status import MODEL_AVAILABLE
from sluice_operator.service.plan import PlannedPool, ServicePlan
from sluice_operator.service.settings import settings_status

ROUTER_READY = "RouterReady"
SCALING_ACTIVE = "ScalingActive"
ACCELERATOR_VERIFIED = "AcceleratorVerified"


def service_status(
    observed: ServiceObserved, plan: ServicePlan, now: datetime, refused: ApiError | None = None
) -> Manifest:
    """The whole status of an InferenceService; that of one being deleted stays as it is. `refused`:
    what has kept the plan from being carried out."""
    before = observed.service.get("status") or {}
    if observed.service["metadata"].get("deletionTimestamp"):
        return dict(before)
    generation = observed.service["metadata"].get("generation", 0)
    applied = before.get("appliedGeneration")
    if plan.refusal is not None:
        kept = {k: before[k] for k in ("mode", "url", "pools") if k in before}
        checks = _refused(plan.refusal, _still_in_use(observed, applied))
    else:
        kept = _facts(observed, plan)
        obstacle = apply_failed(refused, before, generation) if refused else None
        checks = _checks(observed, plan, obstacle)
        if refused is None and not plan.paused:
            applied = generation
    status: Manifest = {"observedGeneration": generation}
    if applied is not None:
        status["appliedGeneration"] = applied
    found = conditions(before.get("conditions") or (), checks, generation, now)
    return status | kept | {"conditions": found}


def _facts(observed: ServiceObserved, plan: ServicePlan) -> Manifest:
    meta, spec = observed.service["metadata"], plan.spec
    if spec is None:
        return {}
    return {
        "mode": spec.mode,
        "url": f"http://{meta['name']}.{meta.get('namespace', 'default')}.svc",
        "pools": {pool.role.value: _summary(observed, pool) for pool in plan.pools},
        "resolved": {pool.role.value: settings_status(pool.settings) for pool in plan.pools},
    }


def _summary(observed: ServiceObserved, pool: PlannedPool) -> Manifest:
    live = _child(observed, ENGINE_POOL, pool.manifest)
    status = (live or {}).get("status") or {}
    ready = status.get("ready", 0)
    return PoolSummary(
        desired=pool.replicas,
        ready=ready,
        draining=status.get("draining", 0),
        summary=f"{ready}/{pool.replicas}",
        accelerator=pool.accelerator.text,
    ).to_json_dict()


def _still_in_use(observed: ServiceObserved, applied: int | None) -> str:
    """What a refusal has left as it was: the generation that was carried out before, if any."""
    if applied is None or applied == observed.service["metadata"].get("generation", 0):
        return ""
    pools = of_kind(observed.children, ENGINE_POOL)
    serves = any((pool.get("status") or {}).get("ready") for pool in pools)
    verb = "keep serving" if serves else "stay in place"
    return f"; the settings of generation {applied} {verb}"


def _refused(refusal: Refusal, still_in_use: str) -> dict[str, Check]:
    check = Check("False", refusal.reason, refusal.message + still_in_use)
    return {
        READY: check,
        PROGRESSING: check,
        RECONCILING: check,
        STALLED: replace(check, status="True"),
    }


def _checks(
    observed: ServiceObserved, plan: ServicePlan, obstacle: Check | None
) -> dict[str, Check]:
    pools = {
        f"{pool.role.capitalize()}Ready": _pool_ready(observed, plan, pool) for pool in plan.pools
    }
    router = _router_ready(observed, plan)
    ready = obstacle or _first_false((*pools.values(), router))
    stalled = _stalled(observed, plan, ready)
    progressing = _progressing(plan, ready, stalled)
    return {
        READY: ready,
        PROGRESSING: progressing,
        **pools,
        ROUTER_READY: router,
        MODEL_AVAILABLE: _model(observed, plan),
        ACCELERATOR_VERIFIED: _accelerator(plan),
        SCALING_ACTIVE: _scaling(plan.spec),
        RECONCILING: progressing,
        STALLED: stalled,
    }


def _first_false(checks: Iterable[Check]) -> Check:
    for check in checks:
        if not check.is_true:
            return check
    return Check("True", "AllReady", "Every pool and the routers are ready.")


def _pool_ready(observed: ServiceObserved, plan: ServicePlan, pool: PlannedPool) -> Check:
    live = _child(observed, ENGINE_POOL, pool.manifest)
    check = _lifted(pool, live, READY) if _is_reported(pool.manifest, live) else None
    return check or _unapplied(plan, f"Pool {pool.role}")


def _unapplied(plan: ServicePlan, what: str) -> Check:
    if plan.paused:
        return Check("False", "Paused", f"{what}: the new spec waits, because spec.paused is true.")
    return Check("False", "Applying", f"{what}: the new spec is being applied.")


def _is_reported(desired: Manifest, live: Manifest | None) -> bool:
    """Whether the pool is what the plan wants, and its status is about that."""
    if live is None or not is_current(desired, live):
        return False
    seen = (live.get("status") or {}).get("observedGeneration")
    return bool(seen == live["metadata"].get("generation"))


def _lifted(pool: PlannedPool, live: Mapping[str, Any] | None, kind: str) -> Check | None:
    found = find((live or {}).get("status"), kind)
    if found is None:
        return None
    return Check(found["status"], found["reason"], f"Pool {pool.role}: {found['message']}")


def _router_ready(observed: ServiceObserved, plan: ServicePlan) -> Check:
    assert plan.router is not None
    reached = progress(plan.router, _child(observed, DEPLOYMENT, plan.router))
    desired, ready = plan.router["spec"]["replicas"], sum(map(is_ready, observed.pods))
    count = f"{ready} of {desired} routers ready"
    if not reached.applied:
        return _unapplied(plan, count)
    if reached.complete:
        return Check("True", "AllReady", f"{count}.")
    if failure := first_failure(observed.pods):
        return Check("False", failure.reason, f"{count}; {failure}")
    if reached.failure:
        return Check("False", "ReplicaFailure", f"{count}; {reached.failure}")
    if reached.deadline_exceeded:
        text = f"{count}; no progress within the deadline."
        return Check("False", "ProgressDeadlineExceeded", text)
    return Check("False", "Starting", f"{count}; the others are starting.")


def _progressing(plan: ServicePlan, ready: Check, stalled: Check) -> Check:
    if stalled.is_true:
        return Check("False", stalled.reason, stalled.message)
    if plan.paused:
        return Check("False", "Paused", "spec.paused is true: nothing but status is written.")
    if ready.is_true or ready.reason == "ScaledToZero":
        return Check("False", "Complete", "Everything is as the spec asks.")
    return Check("True", ready.reason, ready.message)


def _model(observed: ServiceObserved, plan: ServicePlan) -> Check:
    checks = [
        _lifted(pool, _child(observed, ENGINE_POOL, pool.manifest), MODEL_AVAILABLE)
        for pool in plan.pools
    ]
    for check in checks:
        if check is None:
            return Check("Unknown", "NotLoadedYet", "No engine has loaded the model yet.")
        if not check.is_true:
            return check
    return Check("True", "Loaded", "Every pool has an engine that has loaded the model.")


def _accelerator(plan: ServicePlan) -> Check:
    checks = [pool.accelerator.verified for pool in plan.pools]
    return next((check for check in checks if not check.is_true), checks[0])


def _scaling(spec: InferenceServiceSpec | None) -> Check:
    assert spec is not None
    return Check("False", "FixedReplicas", "No pool has an autoscaling section.")


def _stalled(observed: ServiceObserved, plan: ServicePlan, ready: Check) -> Check:
    if ready.reason in STALLING:
        return Check("True", ready.reason, ready.message)
    for pool in plan.pools:
        live = _child(observed, ENGINE_POOL, pool.manifest)
        check = _lifted(pool, live, STALLED) if _is_reported(pool.manifest, live) else None
        if check is not None and check.is_true:
            return check
    return Check("False", "NotStalled", "Nothing needs a person.")


def _child(observed: ServiceObserved, kind: Kind, desired: Manifest) -> Manifest | None:
    name = desired["metadata"]["name"]
    found = of_kind(observed.children, kind)
    return next((child for child in found if child["metadata"]["name"] == name), None)
