"""One InferenceService: observe everything once → plan → apply what differs → report.

The same for every cause: created, changed, a child changed, nothing changed. Knows no details of
any step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_operator.apply import Applier
from sluice_operator.clock import Clock
from sluice_operator.conditions import apply_failed_event
from sluice_operator.keys import Key
from sluice_operator.observe import Observer, with_standing
from sluice_operator.repairs import repair_events
from sluice_operator.report import Reporter
from sluice_operator.service.plan import plan_service
from sluice_operator.service.status import service_status

FOREIGN_SECONDS: Final = 5.0
"""Objects of others are not watched: whether a name is free again has to be looked at."""


@dataclass(frozen=True)
class ServiceReconcile:
    """Brings the cluster to what one InferenceService asks for."""

    observer: Observer
    applier: Applier
    reporter: Reporter
    clock: Clock

    async def __call__(self, key: Key) -> float | None:
        """Idempotent: run again without a change, it writes nothing.

        Raises:
            ApiError: a child was refused; the status says so. To be tried again, more and more
                rarely.
        """
        observed = await self.observer.service(key)
        if observed is None:
            return None
        plan = plan_service(observed)
        if standing := await self.observer.standing(observed, plan):
            observed = with_standing(observed, standing)
            plan = plan_service(observed)
        outcome = await self.applier.carry_out(plan, observed.children)
        repairs = repair_events(outcome.overwritten)
        if outcome.interrupted is not None:
            await self.reporter.tell(observed.service, repairs)
            raise outcome.interrupted
        refused = outcome.refused
        status = service_status(observed, plan, self.clock.now(), refused)
        events = plan.events if refused is None else (apply_failed_event(refused),)
        await self.reporter.report(observed.service, status, (*repairs, *events))
        if refused is not None:
            raise refused
        return FOREIGN_SECONDS if observed.foreign else None
