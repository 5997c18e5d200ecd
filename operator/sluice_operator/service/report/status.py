"""Status of an InferenceService: whether it serves, whether it is up to date, and why not.

Pure; `now` is only used for transitions. The state below a pool is read from the EnginePool.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from sluice_operator.api.conditions import (
    MODEL_AVAILABLE,
    PROGRESSING,
    READY,
    RECONCILING,
    SCALING_ACTIVE,
    STALLED,
    UPDATED,
    Check,
)
from sluice_operator.api.status import LedgerStatus, RevisionNames, RolloutStatus
from sluice_operator.apply.applier import Refused
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import (
    ABNORMAL,
    apply_failed,
    conditions,
    find,
    progressing,
    reconciling,
)
from sluice_operator.delivery.resolved_model import is_fetched
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest, of_kind
from sluice_operator.scaled import Scaling
from sluice_operator.service.observe import Children, ServiceObserved
from sluice_operator.service.plan import ServicePlan
from sluice_operator.service.report.planned_status import StatusParts, planned_status, waiting_check
from sluice_operator.service.report.progressing import moves_check
from sluice_operator.service.report.scaling import scaling_status
from sluice_operator.service.rollout.revisions import engines_ready

_FACTS: Final = (
    "mode", "url", "replicas", "selector", "summary", "pools", "resolved", "handover",
)  # fmt: skip
"""Fields of the status that `planned_status` writes."""


def service_status(
    observed: ServiceObserved,
    plan: ServicePlan,
    now: datetime,
    refused: tuple[Refused, ...] = (),
    scaling: Scaling | None = None,
) -> Manifest:
    """The whole status of an InferenceService; while it is being deleted, its status does not
    change. `refused`: writes of the plan that failed. `scaling`: the last decision of the
    autoscaler."""
    before = observed.service.get("status") or {}
    if observed.service["metadata"].get("deletionTimestamp"):
        return dict(before)
    obstacle = _obstacle(observed.service, observed.children, plan, apply_failed(refused))
    if plan.spec is None:
        assert obstacle is not None
        parts = unplanned_status(observed, plan, obstacle)
    else:
        parts = planned_status(observed, plan, obstacle, refused, scaling, now)
    generation = observed.service["metadata"].get("generation", 0)
    checks = {**parts.checks, **_model_check(plan, parts.checks[UPDATED])}
    completed = generation if checks[UPDATED].is_true else before.get("completedGeneration")
    checks |= reconciling(checks.pop(RECONCILING), is_done=completed == generation)
    generations = {
        "observedGeneration": generation,
        "completedGeneration": completed,
        "appliedGeneration": parts.applied,
    }
    return {
        **{name: number for name, number in generations.items() if number is not None},
        **parts.facts,
        **_model(plan, before),
        **_fetched_adapters(plan, before),
        **_rollout(plan, before),
        **scaling_status(before, plan, scaling),
        **_ledger(observed, before),
        "conditions": conditions(before.get("conditions") or (), checks, generation, now),
    }


def unplanned_status(observed: ServiceObserved, plan: ServicePlan, obstacle: Check) -> StatusParts:
    """The status if nothing is planned: the last one while engines are ready, and `obstacle`."""
    before = observed.service.get("status") or {}
    serves = any(map(engines_ready, of_kind(observed.children, ENGINE_POOL)))
    former = before if serves else {}
    return StatusParts(
        facts={key: former[key] for key in _FACTS if key in former},
        checks=_unplanned_checks(plan, obstacle, former),
        applied=before.get("appliedGeneration"),
    )


def _model(plan: ServicePlan, before: Manifest) -> Manifest:
    """The last resolved model; removed with a spec whose model needs no resolving."""
    if plan.delivery.status is not None:
        return {"model": plan.delivery.status.to_json_dict()}
    if plan.is_accepted and plan.spec is not None and not is_fetched(plan.spec.model):
        return {}
    return {"model": before["model"]} if "model" in before else {}


def _fetched_adapters(plan: ServicePlan, before: Manifest) -> Manifest:
    """The adapters of a hub that are there, with those of an awaited spec; where nothing is
    planned, the last ones."""
    planned = [adapter.to_json_dict() for adapter in plan.adapters.fetched]
    adapters = before.get("adapters", []) if plan.rollout is None else planned
    by_name = {adapter["name"]: adapter for adapter in adapters}
    by_name |= {adapter.name: adapter.to_json_dict() for adapter in plan.delivery.fetched}
    return {"adapters": list(by_name.values())} if by_name else {}


def _rollout(plan: ServicePlan, before: Manifest) -> Manifest:
    """How the roll-out stands; without a plan, as it stood."""
    if plan.rollout is None:
        return {"rollout": before["rollout"]} if "rollout" in before else {}
    stable = RevisionNames.model_validate(plan.rollout.stable)
    status = RolloutStatus(
        reason=plan.rollout.reason,
        message=plan.rollout.message,
        stable=stable if plan.rollout.stable else None,
    )
    return {"rollout": status.to_json_dict()}


def _ledger(observed: ServiceObserved, before: Manifest) -> Manifest:
    """Ledger without open requests: a status does not follow the traffic."""
    if observed.ledger is None:
        return {"ledger": before["ledger"]} if "ledger" in before and observed.pods else {}
    counted = observed.ledger.model_dump(exclude={"open"})
    return {"ledger": LedgerStatus(**counted).to_json_dict()}


def _obstacle(
    service: Manifest, children: Children, plan: ServicePlan, failed: Check | None
) -> Check | None:
    """Why the spec is not carried out; None: it is, or waits for `spec.paused` alone."""
    before = service.get("status") or {}
    generation = service["metadata"].get("generation", 0)
    if plan.refusal is not None:
        why = Check("False", plan.refusal.reason, plan.refusal.message)
    elif failed is not None:
        return failed
    elif plan.paused and not plan.is_accepted:
        why = waiting_check(plan)
    elif plan.delivery.waiting is not None:
        why = plan.delivery.waiting
    else:
        return None
    applied = before.get("appliedGeneration")
    if applied in (None, generation):
        return why
    pools = (pool.get("status") or {} for pool in of_kind(children, ENGINE_POOL))
    verb = "keep serving" if any(pool.get("readyReplicas") for pool in pools) else "stay in place"
    text = f"{why.message.removesuffix('.')}; the settings of generation {applied} {verb}"
    return replace(why, message=text)


def _unplanned_checks(plan: ServicePlan, why: Check, former: Manifest) -> dict[str, Check]:
    """The checks if nothing is planned; `former`: the last status, if engines are ready."""
    types = (condition["type"] for condition in former.get("conditions") or ())
    found = (find(former, kind) or {} for kind in types if kind not in ABNORMAL)
    kept = {c["type"]: Check(c["status"], c["reason"], c["message"]) for c in found}
    stalls = plan.refusal is not None or why.reason in reasons.STALLING
    stalled = replace(why, status="True") if stalls else None
    moves = moves_check(plan, why, stalled)
    now = {UPDATED: why, PROGRESSING: progressing(moves, why), RECONCILING: moves}
    now |= {STALLED: stalled} if stalled else {}
    unscaled = {SCALING_ACTIVE: why} if SCALING_ACTIVE in kept else {}
    return {READY: why} | kept | now | unscaled


def _model_check(plan: ServicePlan, why: Check) -> dict[str, Check]:
    """Check of the delivery of the present spec's model; none where the model is there."""
    if plan.delivery.refusal is not None:
        return {MODEL_AVAILABLE: why}
    return {MODEL_AVAILABLE: plan.delivery.waiting} if plan.delivery.waiting else {}
