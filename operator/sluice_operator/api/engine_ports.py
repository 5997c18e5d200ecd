"""Ports that an engine's container declares, by name: pods of each release say so themselves."""

from __future__ import annotations

from typing import Final

from sluice_operator.api.template import ENGINE_CONTAINER
from sluice_operator.kube.kinds import Manifest

METRICS: Final = "metrics"
"""Name of the port of an engine's metrics, which those of the former release do not have."""
BOOTSTRAP: Final = "bootstrap"
"""Name of the port at which prefill engines are asked for the KV cache."""


def metrics_port(pod: Manifest) -> int | None:
    """The port of the metrics of an engine pod, or of a Deployment's template; None where they are
    at that of requests."""
    return port_named(pod, METRICS)


def port_named(pod: Manifest, name: str) -> int | None:
    """The port of that name that the engine of a pod, or of a template, declares."""
    containers = pod["spec"].get("containers") or ()
    engine_ports = (c.get("ports") or () for c in containers if c.get("name") == ENGINE_CONTAINER)
    declared = (port for each in engine_ports for port in each)
    return next((port["containerPort"] for port in declared if port.get("name") == name), None)
