"""One InferenceService: observe everything once → plan → apply what differs → report.

Every cause leads to all of these steps: created, changed, a child changed, nothing changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sluice_operator.apply.executor import Executor
from sluice_operator.apply.plan import is_destructive
from sluice_operator.clock import Clock, sooner
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import report_of
from sluice_operator.conditions.deployments import progress, refused_again_seconds
from sluice_operator.conditions.waits import seconds_to_next
from sluice_operator.informer.keys import Key
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import DEPLOYMENT, of_kind
from sluice_operator.manifests.router import PROGRESS_SECONDS
from sluice_operator.probes.downloads import EVERY_SECONDS, is_running
from sluice_operator.scaled import NO_AUTOSCALING, Autoscaling
from sluice_operator.service.observe import ServiceObserved, ServiceObserver
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.report.scaling import router_addresses, scaled_service
from sluice_operator.service.report.status import service_status
from sluice_operator.service.rollout.lent_gpus import INTERRUPTS

NAME_CONFLICT_SECONDS: Final = 5.0
"""Interval for checking whether a name is free again: objects of others are not watched."""

DRAINING_SECONDS: Final = 5.0
"""Seconds between two checks whether pods of a deleted pool have left: they concern no other
object."""

ANNOUNCED_SECONDS: Final = 1.0
"""Seconds between the status that nobody will be served, and the end of the engine."""

NOTABLE: Final = frozenset({reasons.RESOLVING, reasons.FETCHING})
"""Reasons that are an event on the service: what engines wait for before they are created.

A roll-out gets its event from its plan, once, with its cause.
"""


@dataclass(frozen=True)
class ServiceReconcile:
    """Brings the cluster to what one InferenceService asks for."""

    observer: ServiceObserver
    executor: Executor
    clock: Clock
    autoscaling: Autoscaling = NO_AUTOSCALING

    async def __call__(self, key: Key) -> float | None:
        """Idempotent: a second run without a change writes nothing. Raises as the executor does."""
        observed = await self.observer.observe(key)
        if observed is None:
            self.executor.forget(key)
            self.autoscaling.forget(key)
            self.observer.looks.follow(key, {})
            return None
        plan = plan_service(observed)
        if is_destructive(plan, observed.children):
            observed = await self.observer.certain().observe(key)
            if observed is None:
                return None
            plan = plan_service(observed)
        live = observed.service
        scaled = scaled_service(observed, plan)
        judged = plan.rollout.canary if plan.rollout and plan.rollout.is_judged else {}
        self.observer.looks.follow(key, judged, router_addresses(observed.pods))
        try:
            outcome = await self.executor.carry_out(live, plan, observed.children)
        except RequestError:
            self.autoscaling.service_seen(key, scaled)  # the serving spec stays scaled
            raise
        self.autoscaling.service_seen(key, scaled)
        scaling = self.autoscaling.last_scaling(key)
        now = self.clock.now()
        status = service_status(observed, plan, now, outcome.refused, scaling)
        report = report_of(plan, outcome, live.get("status"), status, NOTABLE)
        seconds = await self.executor.report(live, outcome, report)
        return sooner(seconds, _look_again_seconds(observed, plan, now))


def _look_again_seconds(
    observed: ServiceObserved, plan: ServicePlan, now: datetime
) -> float | None:
    """Seconds until the next look at something that no event announces."""
    if plan.refusal is not None and plan.refusal.reason == reasons.NAME_TAKEN:
        return NAME_CONFLICT_SECONDS
    if plan.delivery.waiting is not None and any(map(is_running, observed.fetchers)):
        return EVERY_SECONDS
    if plan.rollout is not None and plan.rollout.reason == INTERRUPTS:
        return ANNOUNCED_SECONDS
    if plan.former_gpus:
        return DRAINING_SECONDS
    # Pods of routers may wait too long, and pods of engines may fail to leave.
    waits = seconds_to_next((*observed.pods, *observed.engines), PROGRESS_SECONDS, now)
    refused = _routers_again_seconds(observed, plan, now)
    return sooner(observed.look_again_seconds, waits, refused)


def _routers_again_seconds(
    observed: ServiceObserved, plan: ServicePlan, now: datetime
) -> float | None:
    """Seconds until refused pods of the routers need a person."""
    if plan.router is None:
        return None
    deployments = of_kind(observed.children, DEPLOYMENT)
    name = plan.router["metadata"]["name"]
    live = next((item for item in deployments if item["metadata"]["name"] == name), None)
    return refused_again_seconds(progress(plan.router, live), now)
