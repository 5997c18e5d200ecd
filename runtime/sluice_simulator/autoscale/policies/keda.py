"""KEDA's token-aware scaling as llm-d ships it: seconds of waiting prompts, and KV occupancy.

After llm-d/llm-d, guides/workload-autoscaling/keda-epp-token-aware: prefill = ceil(prompt tokens
sent to engines and not computed / peak prefill rate / 1.5 s), decode = ceil(sum of the KV
occupancies / 0.8). Both are external metrics of an HPA of 1 to 10 engines, which adds one pod in
180 s and removes one in 300 s (04c0115b). Mixed engines take the greater number. The peak rate is
measured once, and configured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice_autoscaler.sample import Sample
from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.policies.hpa import (
    SYNC_SECONDS,
    Behaviour,
    Pacing,
    external_metric_replicas,
    ready_engines,
)
from sluice_simulator.autoscale.policies.policy import Targets

SHIPPED_MAXIMUM: Final = 10
SHIPPED_PACING: Final = Pacing(
    added_pods=1, doubles=False, up_period_seconds=180.0, removed_pods=1, down_period_seconds=300.0
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Targets and limits; by default those that llm-d ships."""

    backlog_seconds: float = 1.5
    kv_used: float = 0.8
    maximum: int = SHIPPED_MAXIMUM
    down_seconds: float = 300.0
    pacing: Pacing = SHIPPED_PACING


class KedaTokenAware:
    """One ScaledObject a pool."""

    interval_seconds = SYNC_SECONDS
    reads_reports = True

    def __init__(
        self, roles: Sequence[Role], peak_tokens_per_second: float, thresholds: Thresholds
    ) -> None:
        self._thresholds = thresholds
        self._peak = peak_tokens_per_second
        self._pools = {
            role: Behaviour(thresholds.maximum, thresholds.down_seconds, pacing=thresholds.pacing)
            for role in roles
        }

    def targets(self, sample: Sample) -> Targets:
        replicas = {}
        for role, behaviour in self._pools.items():
            current = sample.pools[role].replicas
            desired = self._desired(sample, role)
            replicas[role] = behaviour.applied(sample.time_seconds, current, desired)
        return Targets(replicas, reason="TokenAware")

    def _desired(self, sample: Sample, role: Role) -> int:
        engines, pool = ready_engines(sample, role), sample.pools[role]
        desired = 1
        if role is not Role.DECODE:
            backlog = sum(engine.figures.queued_tokens for engine in engines) / self._peak
            desired = external_metric_replicas(pool, backlog, self._thresholds.backlog_seconds)
        if role is not Role.PREFILL:
            kv_used = sum(engine.figures.kv_used for engine in engines)
            desired = max(
                desired, external_metric_replicas(pool, kv_used, self._thresholds.kv_used)
            )
        return desired
