"""The operator's metrics, as collectors made from the contract's table.

The names, labels and buckets come from `sluice_contract.cluster.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from sluice_autoscaler.decision import Decision
from sluice_contract.cluster.metrics import OPERATOR, Metric
from sluice_contract.version import VERSION

from sluice_operator.process.blocked_metrics import BlockedGauge
from sluice_operator.process.scaling_metrics import ScaledReplicas
from sluice_operator.process.status_metrics import ServiceStatuses

BY_NAME: Final = {metric.name: metric for metric in OPERATOR}


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
