"""Kinds that the operator needs and cannot read, as a gauge that is made at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sluice_contract.cluster.metrics import Metric

from sluice_operator.informer.blocked import Access


class BlockedGauge(Collector):
    """Collects what `follow` was given; nothing before."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._blocked: Callable[[], Iterable[Access]] = tuple

    def follow(self, blocked: Callable[[], Iterable[Access]]) -> None:
        """Calls `blocked` at every scrape."""
        self._blocked = blocked

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The family, with a series for each."""
        family = GaugeMetricFamily(self._metric.name, self._metric.help, labels=self._metric.labels)
        for verb, kind, namespace in self._blocked():
            family.add_metric((kind.kind, namespace or "", verb), 1)
        yield family
