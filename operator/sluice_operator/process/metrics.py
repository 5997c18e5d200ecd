"""The operator's metrics, as collectors made from the contract's table.

The names, labels and buckets come from `sluice_contract.cluster.metrics`. Counters and histograms
are updated as things happen. Three collectors make their gauges at each scrape: conditions and
replicas of services, replicas of scaled pools, and kinds that the operator cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sluice_autoscaler.decision import Decision
from sluice_autoscaler.sample import PoolSample
from sluice_contract.cluster.metrics import OPERATOR, Metric
from sluice_contract.version import VERSION

from sluice_operator.informer.blocked import Access
from sluice_operator.informer.keys import Key
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.scaled import ScaledPool

BY_NAME: Final = {metric.name: metric for metric in OPERATOR}
STATES: Final = ("desired", "ready", "updated", "draining")
ScaledPools = Callable[[], Iterator[tuple[Key, ScaledPool, PoolSample, int]]]
"""Every scaled pool, its pods, and how many engines were decided last."""


class OperatorMetrics:
    """One process's collectors. Each method records one thing."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._gauge(BY_NAME["sluice_operator_info"]).labels(VERSION).set(1)
        self._total = self._counter(BY_NAME["sluice_operator_reconcile_total"])
        self._errors = self._counter(BY_NAME["sluice_operator_reconcile_errors_total"])
        self._duration = self._histogram(BY_NAME["sluice_operator_reconcile_duration_seconds"])
        self._depth = self._gauge(BY_NAME["sluice_operator_queue_depth"])
        self._writes = self._counter(BY_NAME["sluice_operator_writes_total"])
        self._decisions = self._counter(BY_NAME["sluice_autoscaler_decisions_total"])
        self._leader = self._gauge(BY_NAME["sluice_operator_leader"])
        self.statuses = ServiceStatuses(
            BY_NAME["sluice_operator_condition"], BY_NAME["sluice_operator_pool_replicas"]
        )
        """The gauges of each InferenceService."""
        self._registry.register(self.statuses)
        self.blocked = BlockedGauge(BY_NAME["sluice_operator_blocked_kinds"])
        """The gauge of kinds that cannot be read."""
        self._registry.register(self.blocked)
        self.scaled = ScaledReplicas(BY_NAME)
        """The gauges of each scaled pool."""
        self._registry.register(self.scaled)

    def reconciled(self, kind: str, seconds: float) -> None:
        """A reconcile that succeeded."""
        self._total.labels(kind=kind, outcome="success").inc()
        self._duration.labels(kind=kind).observe(seconds)

    def failed(self, kind: str, error: Exception, seconds: float) -> None:
        """A reconcile that raised, and will be tried again."""
        self._total.labels(kind=kind, outcome="error").inc()
        self._errors.labels(kind=kind, error=type(error).__name__).inc()
        self._duration.labels(kind=kind).observe(seconds)

    def wrote(self, verb: str, plural: str) -> None:
        """A write request, about to be sent."""
        self._writes.labels(verb=verb, kind=plural).inc()

    def decided(self, decision: Decision) -> None:
        """A decision on the pools of a service."""
        for pool in decision.pools.values():
            self._decisions.labels(role=pool.role, reason=pool.reason).inc()

    def leads(self, leading: bool) -> None:
        """Whether this replica holds the Lease."""
        self._leader.set(1 if leading else 0)

    def watch_depth(self, kind: str, depth: Callable[[], int]) -> None:
        """Calls `depth` for the queue depth of `kind` at every scrape."""
        self._depth.labels(kind=kind).set_function(depth)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, metric: Metric) -> Counter:
        # prometheus-client appends `_total` by itself.
        name = metric.name.removesuffix("_total")
        return Counter(name, metric.help, metric.labels, registry=self._registry)

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self._registry)

    def _histogram(self, metric: Metric) -> Histogram:
        return Histogram(
            metric.name,
            metric.help,
            metric.labels,
            buckets=metric.buckets,
            registry=self._registry,
        )


class BlockedGauge(Collector):
    """Kinds that the operator needs and cannot read; none before `follow` was called."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._blocked: Callable[[], Iterable[Access]] = tuple

    def follow(self, blocked: Callable[[], Iterable[Access]]) -> None:
        """Calls `blocked` at every scrape."""
        self._blocked = blocked

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The family, with a series for each kind that cannot be read."""
        family = _family(self._metric)
        for verb, kind, namespace in self._blocked():
            family.add_metric((kind.kind, namespace or "", verb), 1)
        yield family


class ScaledReplicas(Collector):
    """Desired and present replicas of scaled pools; none before `follow` was called."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        """`metrics`: by name."""
        self._metrics = metrics
        self._pools: ScaledPools = lambda: iter(())

    def follow(self, pools: ScaledPools) -> None:
        """Calls `pools` at every scrape."""
        self._pools = pools

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families, with the series of every pool that is scaled."""
        desired, current, blocked = (
            _family(self._metrics[f"sluice_autoscaler_{name}_replicas"])
            for name in ("desired", "current", "unschedulable")
        )
        for key, pool, pods, replicas in self._pools():
            place = (key.namespace, key.name, pods.role, pool.accelerator)
            desired.add_metric(place, replicas)
            current.add_metric(place, pods.replicas)
            blocked.add_metric(place, pods.unschedulable)
        yield from (desired, current, blocked)


def _family(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


class _Shown(NamedTuple):
    """What the gauges say of one service."""

    conditions: tuple[tuple[str, str, str], ...]
    """Type, status and reason."""
    replicas: tuple[tuple[str, str, int], ...]
    """Role, state and number."""


class ServiceStatuses(Collector):
    """Conditions and replicas of every InferenceService, from its last reported status."""

    def __init__(self, condition: Metric, replicas: Metric) -> None:
        self._condition = condition
        self._replicas = replicas
        self._last: dict[tuple[str, str], _Shown] = {}

    def record(self, live: Manifest, status: Manifest) -> None:
        """The `status` that `live` has now; other kinds than InferenceService are left out."""
        if live["kind"] == INFERENCE_SERVICE.kind:
            metadata = live["metadata"]
            self._last[metadata["namespace"], metadata["name"]] = _shown(status)

    def forget(self, key: Key) -> None:
        """The object is gone."""
        if key.kind == INFERENCE_SERVICE.kind:
            self._last.pop((key.namespace, key.name), None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Both families, with the series of every service that is there."""
        conditions, replicas = map(_family, (self._condition, self._replicas))
        for place, shown in self._last.items():
            for condition in shown.conditions:
                conditions.add_metric((*place, *condition), 1)
            for role, state, count in shown.replicas:
                replicas.add_metric((*place, role, state), count)
        yield conditions
        yield replicas


def _shown(status: Manifest) -> _Shown:
    conditions = (
        (condition["type"], condition["status"], condition.get("reason", ""))
        for condition in status.get("conditions") or ()
    )
    replicas = (
        (role, state, pool[f"{state}Replicas"])
        for role, pool in (status.get("pools") or {}).items()
        for state in STATES
        if pool.get(f"{state}Replicas") is not None
    )
    return _Shown(tuple(conditions), tuple(replicas))
