"""The alerts of every service and of the operator; those of a service's own promise are made by the
operator, from its slo.

Each has a runbook of its name in docs/runbooks.
"""

from __future__ import annotations

from typing import Final

from sluice_operator.manifests.alerting import Alert

from dashboards import service
from dashboards.promql import SERVICE, rate

WHERE: Final = ("namespace", SERVICE)
AT: Final = "{{ $labels.namespace }}/{{ $labels." + SERVICE + " }}"
CHOSEN: Final = "var-namespace={{ $labels.namespace }}&var-service={{ $labels." + SERVICE + " }}"
RECENT: Final = "5m"


ALERTS: Final = (
    Alert(
        name="SluiceRequestsFail",
        value=f"{rate(service.REQUESTS, service.FAILED, by=WHERE, window=RECENT)} / "
        f"{rate(service.REQUESTS, by=WHERE, window=RECENT)}",
        condition="> 0.01",
        lasting="10m",
        severity="critical",
        summary=f"{AT}: requests are refused or fail",
        description="{{ $value | humanizePercentage }} of the answers are 5xx or 429.",
        panel=(service.UID, "Requests that fail"),
        chosen=CHOSEN,
    ),
)
