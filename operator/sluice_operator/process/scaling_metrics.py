"""Replicas of scaled pools, wanted and present, as gauges that are made at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sluice_contract.labels import Role
from sluice_contract.metrics import Metric

from sluice_operator.informer.keys import Key
from sluice_operator.scaled import ScaledPool

ScaledPools = Callable[[], Iterator[tuple[Key, Role, ScaledPool, int]]]
"""Every scaled pool, and how many engines were decided last."""


class ScaledReplicas(Collector):
    """Collects what `follow` was given; nothing before."""

    def __init__(self, desired: Metric, current: Metric) -> None:
        self._desired = desired
        self._current = current
        self._pools: ScaledPools = lambda: iter(())

    def follow(self, pools: ScaledPools) -> None:
        """Calls `pools` at every scrape."""
        self._pools = pools

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Both families."""
        desired, current = map(_family, (self._desired, self._current))
        for key, role, pool, wanted in self._pools():
            place = (key.namespace, key.name, role, pool.accelerator)
            desired.add_metric(place, wanted)
            current.add_metric(place, pool.replicas)
        yield desired
        yield current


def _family(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
