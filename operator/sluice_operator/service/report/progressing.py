"""Whether a service is on its way to its spec, has stopped, or needs a person.

Pure. The state below a pool is read from the EnginePool.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sluice_operator.api.conditions import PROGRESSING, STALLED, Check
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import settled
from sluice_operator.conditions.waits import not_leaving, with_remedy
from sluice_operator.service.observe import Children, ServiceObserved
from sluice_operator.service.plan import ServicePlan
from sluice_operator.service.report.part_status import StatusPart, current_pool, is_reported, lifted
from sluice_operator.service.rollout.gpu_budget import WAITS_FOR_BUDGET
from sluice_operator.service.rollout.in_place import HALTED, IN_PLACE
from sluice_operator.service.rollout.lent_gpus import INTERRUPTS
from sluice_operator.service.rollout.pairing import NO_PAIR

SHOWN_ROLLOUTS: Final = (
    frozenset({IN_PLACE, WAITS_FOR_BUDGET, NO_PAIR, reasons.CANARY_ASLEEP}) | reasons.CANARY_AT_STEP
)
"""Reasons of a roll-out that become the reason of Progressing."""


def moves_check(plan: ServicePlan, updated: Check, stalled: Check | None) -> Check:
    """Whether the service is on its way to its spec, and why it is not there."""
    is_paused = plan.paused and updated.reason != reasons.CANARY_ABORTED
    paused = "spec.paused is true: nothing is changed." if is_paused else ""
    if rests := settled(updated, stalled, paused, "Everything is as the spec asks."):
        return rests
    if updated.reason == reasons.CANARY_ABORTED:
        return updated
    if plan.is_accepted and plan.rollout is not None and plan.rollout.reason in SHOWN_ROLLOUTS:
        return Check("True", plan.rollout.reason, plan.rollout.message)
    return Check("True", updated.reason, updated.message)


def canary_stays(plan: ServicePlan) -> Check | None:
    """Why the spec is not carried out any further after its canary, or while that sleeps; None: it
    is."""
    rollout = plan.rollout
    if rollout is None or not plan.is_accepted:
        return None
    stays = rollout.is_ended or rollout.reason == reasons.CANARY_ASLEEP
    return Check("False", rollout.reason, rollout.message) if stays else None


def interrupts_check(plan: ServicePlan) -> Check | None:
    """The check for a next step of the roll-out after which nobody is served; None: no such step.
    Stalled specs, and specs kept while a newer one is refused, have it too: the step is taken once
    status says so."""
    if plan.paused or plan.rollout is None or plan.rollout.reason != INTERRUPTS:
        return None
    return Check("True", INTERRUPTS, plan.rollout.message)


def halted_check(children: Children, plan: ServicePlan, stalled: Check | None) -> Check | None:
    """A stopped roll-out while the former state still serves: engines of a former revision, or the
    pools of another mode."""
    rollout = plan.rollout
    if rollout is not None and rollout.reason in (reasons.CANARY_WORSE, reasons.CANARY_LATE):
        return Check("False", rollout.reason, rollout.message)
    for pool in plan.pools:
        check = lifted(pool.role, current_pool(children, pool), PROGRESSING)
        if check is not None and check.reason == reasons.ROLLOUT_HALTED:
            return check
    if stalled is not None and plan.former.is_served:
        text = f"{stalled.reason}: {stalled.message} The pools of the former mode serve on."
        return Check("False", reasons.ROLLOUT_HALTED, text)
    return None


def stalled_check(
    children: Children, plan: ServicePlan, router: StatusPart, updated: Check
) -> Check | None:
    """Why a person is needed."""
    if plan.refusal is not None or updated.reason in reasons.STALLING:
        return Check("True", updated.reason, updated.message)
    adapters = plan.adapters.check
    if adapters is not None and adapters.reason in reasons.STALLING:
        return Check("True", adapters.reason, adapters.message)
    if plan.delivery.waiting is not None:
        return None
    rollout = plan.rollout
    if rollout is not None and rollout.reason in (reasons.CANARY_WORSE, reasons.CANARY_LATE):
        return Check("True", rollout.reason, rollout.message)
    for pool in plan.pools:
        live = current_pool(children, pool)
        check = lifted(pool.role, live, STALLED) if is_reported(live) else None
        if check is not None and check.is_true:
            return check
    if rollout is not None and rollout.reason == HALTED:
        return Check("True", rollout.reason, rollout.message)
    if router.given_up:
        return Check("True", router.updated.reason, with_remedy(router.updated))
    return None


def lost_gpus(observed: ServiceObserved, plan: ServicePlan, now: datetime) -> Check | None:
    """GPUs that engines wait for and may never get: pods hold them that should have left."""
    if plan.rollout is None or plan.rollout.reason != WAITS_FOR_BUDGET:
        return None
    pods = not_leaving(observed.engines, now)
    if not pods:
        return None
    return Check("False", reasons.PODS_NOT_LEAVING, f"{plan.rollout.message} {pods}.")
