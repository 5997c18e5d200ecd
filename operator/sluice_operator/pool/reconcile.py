"""One EnginePool: observe everything once → plan → apply what differs → report.

The same for every cause, as for an InferenceService. Knows no details of any step.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice_operator.apply import Applier
from sluice_operator.clock import Clock
from sluice_operator.conditions import apply_failed_event
from sluice_operator.keys import Key
from sluice_operator.observe import Observer
from sluice_operator.pool.plan import plan_pool
from sluice_operator.pool.status import pool_status
from sluice_operator.repairs import repair_events
from sluice_operator.report import Reporter


@dataclass(frozen=True)
class PoolReconcile:
    """Brings the cluster to what one EnginePool asks for."""

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
        observed = await self.observer.pool(key)
        if observed is None:
            return None
        plan = plan_pool(observed)
        outcome = await self.applier.carry_out(plan, observed.children)
        repairs = repair_events(outcome.overwritten)
        if outcome.interrupted is not None:
            await self.reporter.tell(observed.pool, repairs)
            raise outcome.interrupted
        refused = outcome.refused
        status = pool_status(observed, plan, self.clock.now(), refused)
        events = plan.events if refused is None else (apply_failed_event(refused),)
        await self.reporter.report(observed.pool, status, (*repairs, *events))
        if refused is not None:
            raise refused
        return None
