"""PodMonitors, which tell the Prometheus operator where a service's pods have their metrics."""

from __future__ import annotations

from typing import Final

from sluice_contract import labels

from sluice_operator.kube.kinds import POD_MONITOR, Manifest
from sluice_operator.manifests.metadata import ENGINE, ROUTER, Owner

METRICS_PORTS: Final = {ENGINE: "http", ROUTER: "metrics"}
"""By component: the name of the port that answers /metrics."""


def pod_monitors(owner: Owner) -> tuple[Manifest, ...]:
    """One for the engines and one for the routers."""
    return tuple(_pod_monitor(owner, *each) for each in METRICS_PORTS.items())


def _pod_monitor(owner: Owner, component: str, port: str) -> Manifest:
    selector = {labels.SERVICE: owner.service, labels.COMPONENT: component}
    return owner.child(POD_MONITOR, f"{owner.service}-{component}", component) | {
        "spec": {
            "selector": {"matchLabels": selector},
            "podTargetLabels": [labels.SERVICE, labels.ROLE, labels.REVISION],
            "podMetricsEndpoints": [{"port": port}],
        }
    }
