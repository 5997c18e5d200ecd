"""One InferenceService: observe everything once → plan → apply what differs → report.

The same for every cause: created, changed, a child changed, nothing changed. Knows no details of
any step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_operator.clock import Clock
from sluice_operator.execute import Executor
from sluice_operator.keys import Key
from sluice_operator.observe import Observer, with_standing
from sluice_operator.service.plan import plan_service
from sluice_operator.service.status import service_status

FOREIGN_SECONDS: Final = 5.0
"""Objects of others are not watched: whether a name is free again has to be looked at."""


@dataclass(frozen=True)
class ServiceReconcile:
    """Brings the cluster to what one InferenceService asks for."""

    observer: Observer
    executor: Executor
    clock: Clock

    async def __call__(self, key: Key) -> float | None:
        """Idempotent: run again without a change, it writes nothing. Raises what executing does."""
        observed = await self.observer.service(key)
        if observed is None:
            return None
        plan = plan_service(observed)
        if standing := await self.observer.standing(observed, plan):
            observed = with_standing(observed, standing)
            plan = plan_service(observed)
        await self.executor.execute(
            observed.service,
            plan,
            observed.children,
            lambda refused: service_status(observed, plan, self.clock.now(), refused),
        )
        return FOREIGN_SECONDS if observed.foreign else None
