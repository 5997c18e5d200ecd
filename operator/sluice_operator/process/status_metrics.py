"""Conditions and replicas of every InferenceService, as gauges that are made at each scrape.

Holds the last status of each; a service that is gone has no series.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sluice_contract.cluster.metrics import Metric

from sluice_operator.informer.keys import Key
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest

STATES: Final = ("desired", "ready", "draining")


class _Shown(NamedTuple):
    """What the gauges say of one service."""

    conditions: tuple[tuple[str, str, str], ...]
    """Type, status and reason."""
    replicas: tuple[tuple[str, str, int], ...]
    """Role, state and number."""


class ServiceStatuses(Collector):
    """Collects the statuses that are reported, and exposes them."""

    def __init__(self, condition: Metric, replicas: Metric) -> None:
        self._condition = condition
        self._replicas = replicas
        self._known: dict[tuple[str, str], _Shown] = {}

    def record(self, live: Manifest, status: Manifest) -> None:
        """The `status` that `live` has now; other kinds than InferenceService are left out."""
        if live["kind"] == INFERENCE_SERVICE.kind:
            metadata = live["metadata"]
            self._known[metadata["namespace"], metadata["name"]] = _shown(status)

    def forget(self, key: Key) -> None:
        """The object is gone."""
        if key.kind == INFERENCE_SERVICE.kind:
            self._known.pop((key.namespace, key.name), None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Both families, with the series of every service that is there."""
        conditions, replicas = map(_family, (self._condition, self._replicas))
        for place, shown in self._known.items():
            for condition in shown.conditions:
                conditions.add_metric((*place, *condition), 1)
            for role, state, count in shown.replicas:
                replicas.add_metric((*place, role, state), count)
        yield conditions
        yield replicas


def _family(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def _shown(status: Manifest) -> _Shown:
    conditions = (
        (condition["type"], condition["status"], condition.get("reason", ""))
        for condition in status.get("conditions") or ()
    )
    replicas = (
        (role, state, pool[state])
        for role, pool in (status.get("pools") or {}).items()
        for state in STATES
        if pool.get(state) is not None
    )
    return _Shown(tuple(conditions), tuple(replicas))
