"""One EnginePool: observe everything once → plan → apply what differs → report.

Every cause of a reconcile leads to all of these steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice_contract.cluster.labels import Role

from sluice_operator.apply.executor import Executor
from sluice_operator.apply.plan import is_destructive
from sluice_operator.clock import Clock, sooner
from sluice_operator.conditions.conditions import report_of
from sluice_operator.conditions.deployments import seconds_to_bound
from sluice_operator.informer.keys import Key
from sluice_operator.kube.kinds import INFERENCE_SERVICE
from sluice_operator.pool.observe import PoolObserved, PoolObserver
from sluice_operator.pool.plan import plan_pool
from sluice_operator.pool.pods import pool_pods
from sluice_operator.pool.status import pool_status
from sluice_operator.scaled import NO_AUTOSCALING, Autoscaling


@dataclass(frozen=True)
class PoolReconcile:
    """Brings the cluster to what one EnginePool asks for."""

    observer: PoolObserver
    executor: Executor
    clock: Clock
    autoscaling: Autoscaling = NO_AUTOSCALING

    async def __call__(self, key: Key) -> float | None:
        """Idempotent: a second run without a change writes nothing. Raises as the executor does."""
        observed = await self.observer.observe(key)
        if observed is None:
            return None
        plan = plan_pool(observed)
        if is_destructive(plan, observed.children):
            observed = await self.observer.certain().observe(key)
            if observed is None:
                return None
            plan = plan_pool(observed)
        self._count(observed)
        live = observed.pool
        outcome = await self.executor.carry_out(live, plan, observed.children)
        now = self.clock.now()
        status = pool_status(observed, plan, now, outcome.refused)
        report = report_of(plan, outcome, live.get("status"), status, warnings_alone=True)
        seconds = await self.executor.report(live, outcome, report)
        waits = seconds_to_bound(plan.progress, observed.pods, now) if plan.progress else None
        return sooner(seconds, observed.ask_again_seconds, waits)

    def _count(self, observed: PoolObserved) -> None:
        """Reports to the autoscaler how many pods there are."""
        metadata, spec = observed.pool["metadata"], observed.pool["spec"]
        service = Key(INFERENCE_SERVICE.kind, metadata["namespace"], spec["serviceName"])
        self.autoscaling.pool_seen(service, Role(spec["role"]), pool_pods(observed))
