"""Replicas of scaled pools, wanted and present, as gauges that are made at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sluice_autoscaler.sample import PoolSample
from sluice_contract.cluster.metrics import Metric

from sluice_operator.informer.keys import Key
from sluice_operator.scaled import ScaledPool

ScaledPools = Callable[[], Iterator[tuple[Key, ScaledPool, PoolSample, int]]]
"""Every scaled pool, its pods, and how many engines were decided last."""


class ScaledReplicas(Collector):
    """Collects what `follow` was given; nothing before."""

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
