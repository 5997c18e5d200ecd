"""Other people's scalers: the HorizontalPodAutoscaler, and KEDA's token-aware scaling.

The HPA is after kubernetes/kubernetes, pkg/controller/podautoscaler (replica_calculator.go,
horizontal.go): the ratio of the metric to its target, with a tolerance of 10 %. Pods without
metrics count as idle when it would grow, and as on target when it would shrink. The highest
recommendation of the last five minutes limits shrinking. Growth is at most four pods or half of the
new size in 15 s, whichever is more.

KEDA is as llm-d ships it, after llm-d/llm-d, guides/workload-autoscaling/keda-epp-token-aware:
prefill = ceil(prompt tokens sent to engines and not computed / peak prefill rate / 1.5 s), decode =
ceil(sum of the KV occupancies / 0.8). Both are external metrics of an HPA of 1 to 10 engines, which
adds one pod in 180 s and removes one in 300 s (04c0115b). Mixed engines take the greater number.
The peak rate is measured once, and configured.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_autoscaler.sample import EngineSample, PoolSample, Sample
from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.policies.policy import Targets

SYNC_SECONDS: Final = 15.0
TOLERANCE: Final = 0.1
MetricOf = Callable[[EngineSample], float]

METRICS: Final[Mapping[str, MetricOf]] = {
    "requests": lambda engine: engine.figures.queued_requests + engine.figures.running_requests,
    "waiting": lambda engine: engine.figures.queued_requests,
    "kv": lambda engine: engine.figures.kv_used,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """Target of one pool's autoscaler."""

    metric: str
    target: float
    """Target mean of the pods."""
    down_seconds: float = 300.0
    """Stabilisation window: time for which the highest recommendation holds."""


class Hpa:
    """One HorizontalPodAutoscaler a pool, over a metric of its pods."""

    interval_seconds = SYNC_SECONDS
    reads_reports = True

    def __init__(self, rules: Mapping[Role, Rule], maximum: int) -> None:
        self._rules = rules
        self._pools = {role: Behaviour(maximum, rule.down_seconds) for role, rule in rules.items()}

    def targets(self, sample: Sample) -> Targets:
        replicas = {}
        for role, rule in self._rules.items():
            pool = sample.pools[role]
            values = [METRICS[rule.metric](engine) for engine in ready_engines(sample, role)]
            desired = pods_metric_replicas(pool.replicas, values, pool.starting, rule.target)
            replicas[role] = self._pools[role].applied(sample.time_seconds, pool.replicas, desired)
        return Targets(replicas, reason="Hpa")


def ready_engines(sample: Sample, role: Role) -> list[EngineSample]:
    """Engines whose pods have metrics and are not draining."""
    return [
        engine
        for engine in sample.engines or ()
        if engine.role is role and engine.condition == "ready"
    ]


def pods_metric_replicas(current: int, values: Sequence[float], missing: int, target: float) -> int:
    """Number of pods for a metric of pods; `missing` pods have none."""
    if not values:
        return current
    ratio = sum(values) / len(values) / target
    if not missing:
        return current if abs(1 - ratio) <= TOLERANCE else math.ceil(ratio * len(values))
    pods = len(values) + missing
    rebalanced = (sum(values) + (missing * target if ratio < 1 else 0.0)) / pods / target
    turned = (ratio < 1 < rebalanced) or (rebalanced < 1 < ratio)
    if abs(1 - rebalanced) <= TOLERANCE or turned:
        return current
    desired = math.ceil(rebalanced * pods)
    against = (rebalanced < 1 and desired > current) or (rebalanced > 1 and desired < current)
    return current if against else desired


def external_metric_replicas(pool: PoolSample, total: float, target: float) -> int:
    """Number of pods for an external metric with an average value of `target` per pod."""
    current = pool.ready + pool.starting + pool.unschedulable
    if not current:
        return math.ceil(total / target)
    ratio = total / (target * current)
    return current if abs(1 - ratio) <= TOLERANCE else math.ceil(total / target)


@dataclass(frozen=True, slots=True)
class Pacing:
    """Limits of an HPA's `behavior`; by default those of Kubernetes."""

    added_pods: int = 4
    doubles: bool = True
    """Whether it may grow to twice its size, if that is more."""
    up_period_seconds: float = 15.0
    removed_pods: int | None = None
    """Maximum pods removed in a period; None: as many as there are."""
    down_period_seconds: float = 15.0


class Behaviour:
    """Stabilisation and limits of one pool, from recommendations to replicas."""

    def __init__(
        self, maximum: int, down_seconds: float, minimum: int = 1, pacing: Pacing | None = None
    ) -> None:
        self._limits = minimum, maximum
        self._down_seconds = down_seconds
        self._pacing = pacing or Pacing()
        self._recommended: deque[tuple[float, int]] = deque()
        self._changed: deque[tuple[float, int]] = deque(maxlen=64)

    def applied(self, now: float, current: int, desired: int) -> int:
        """Number of replicas from `now` on."""
        self._recommended.append((now, desired))
        while self._recommended[0][0] < now - self._down_seconds:
            self._recommended.popleft()
        highest = max(recommended for _, recommended in self._recommended)
        stable = max(desired, current) if desired > current else min(current, highest)
        result = max(self._least(now, current), min(self._most(now, current), stable))
        least, most = self._limits
        result = max(least, min(most, result))
        if result != current:
            self._changed.append((now, result - current))
        return result

    def _most(self, now: float, current: int) -> int:
        pacing = self._pacing
        began = current - self._changed_since(now - pacing.up_period_seconds)
        return max(current, began + pacing.added_pods, 2 * began if pacing.doubles else 0)

    def _least(self, now: float, current: int) -> int:
        pacing = self._pacing
        if pacing.removed_pods is None:
            return 0
        began = current - self._changed_since(now - pacing.down_period_seconds)
        return min(current, began - pacing.removed_pods)

    def _changed_since(self, seconds: float) -> int:
        """Number of pods by which it has grown since then; below 0: shrunk."""
        return sum(change for at, change in self._changed if at > seconds)


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
