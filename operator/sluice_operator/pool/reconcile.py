"""One EnginePool: observe everything once → plan → apply what differs → report.

The same for every cause, as for an InferenceService. Knows no details of any step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_operator.apply.executor import Executor
from sluice_operator.clock import Clock
from sluice_operator.conditions.conditions import report_of
from sluice_operator.informer.keys import Key
from sluice_operator.pool.observe import PoolObserver
from sluice_operator.pool.plan import plan_pool
from sluice_operator.pool.status import pool_status

REPORT_SECONDS: Final = 5.0
"""When to ask engines again that have not said what they compute on."""


@dataclass(frozen=True)
class PoolReconcile:
    """Brings the cluster to what one EnginePool asks for."""

    observer: PoolObserver
    executor: Executor
    clock: Clock

    async def __call__(self, key: Key) -> float | None:
        """Idempotent: a second run without a change writes nothing. Raises as the executor does."""
        observed = await self.observer.observe(key)
        if observed is None:
            return None
        plan = plan_pool(observed)
        live = observed.pool
        outcome = await self.executor.carry_out(live, plan, observed.children)
        status = pool_status(observed, plan, self.clock.now(), outcome.refused)
        report = report_of(plan, outcome.refused, live.get("status"), status)
        await self.executor.report(live, outcome, report)
        return REPORT_SECONDS if observed.is_report_missing else None
