"""One EnginePool: observe everything once → plan → apply what differs → report.

The same for every cause, as for an InferenceService. Knows no details of any step.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice_operator.clock import Clock
from sluice_operator.execute import Executor
from sluice_operator.keys import Key
from sluice_operator.observe import Observer
from sluice_operator.pool.plan import plan_pool
from sluice_operator.pool.status import pool_status


@dataclass(frozen=True)
class PoolReconcile:
    """Brings the cluster to what one EnginePool asks for."""

    observer: Observer
    executor: Executor
    clock: Clock

    async def __call__(self, key: Key) -> None:
        """Idempotent: run again without a change, it writes nothing. Raises what executing does."""
        observed = await self.observer.pool(key)
        if observed is None:
            return
        plan = plan_pool(observed)
        await self.executor.execute(
            observed.pool,
            plan,
            observed.children,
            lambda refused: pool_status(observed, plan, self.clock.now(), refused),
        )
