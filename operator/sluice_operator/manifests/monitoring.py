"""PodMonitors: where the Prometheus operator finds the metrics of a service's pods."""

from __future__ import annotations

from typing import Final

from sluice_contract.cluster import labels

from sluice_operator.kube.kinds import POD_MONITOR, Manifest
from sluice_operator.manifests.metadata import ENGINE, ROUTER, Owner

_ENDPOINT: Final[Manifest] = {"port": "metrics"}
_REVISION: Final = "__meta_kubernetes_pod_label_serving_sluice_dev_revision"
"""Prometheus' name of the label with the revision."""


def pod_monitors(owner: Owner, one_port: tuple[str, ...] = ()) -> tuple[Manifest, ...]:
    """One for the engines and one for the routers. `one_port`: revisions of the former release,
    with metrics at the port of requests."""
    keep = {"action": "keep", "sourceLabels": [_REVISION], "regex": "|".join(one_port)}
    former = [{"port": "http", "relabelings": [keep]}] if one_port else []
    return (
        _pod_monitor(owner, ENGINE, [_ENDPOINT, *former]),
        _pod_monitor(owner, ROUTER, [_ENDPOINT]),
    )


def _pod_monitor(owner: Owner, component: str, endpoints: list[Manifest]) -> Manifest:
    selector = {labels.SERVICE: owner.service, labels.COMPONENT: component}
    return owner.child(POD_MONITOR, f"{owner.service}-{component}", component) | {
        "spec": {
            "selector": {"matchLabels": selector},
            "podTargetLabels": [labels.SERVICE, labels.ROLE, labels.REVISION],
            "podMetricsEndpoints": endpoints,
        }
    }
