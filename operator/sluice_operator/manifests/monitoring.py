"""PodMonitors: where the Prometheus operator finds the metrics of a service's pods."""

from __future__ import annotations

from sluice_contract.cluster import labels

from sluice_operator.kube.kinds import POD_MONITOR, Manifest
from sluice_operator.manifests.metadata import ENGINE, ROUTER, Owner


def pod_monitors(owner: Owner) -> tuple[Manifest, ...]:
    """The PodMonitors of a service: of its engines, and of its routers."""
    return _pod_monitor(owner, ENGINE), _pod_monitor(owner, ROUTER)


def _pod_monitor(owner: Owner, component: str) -> Manifest:
    selector = {labels.SERVICE: owner.service, labels.COMPONENT: component}
    return owner.child(POD_MONITOR, f"{owner.service}-{component}", component) | {
        "spec": {
            "selector": {"matchLabels": selector},
            "podTargetLabels": [labels.SERVICE, labels.ROLE, labels.REVISION],
            "podMetricsEndpoints": [{"port": "metrics"}],
        }
    }
