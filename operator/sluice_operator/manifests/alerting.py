"""An alert as a value, and its Prometheus rule.

Used for the rules of one service, which the operator makes, and for the rules of all services,
which come with the dashboards.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Final, Literal

from sluice_operator.kube.kinds import Manifest

Severity = Literal["critical", "warning"]
"""critical: pages at any hour. warning: waits for the morning."""
_IDS: Final = 1_000_000


@dataclass(frozen=True)
class Alert:
    """When an alert fires, and what it says."""

    name: str
    value: str
    """PromQL of what is watched, with the labels that tell where."""
    condition: str
    """The condition, e.g. `> 100`; the rule's expression is `value` and this."""
    lasting: str
    """How long the condition must hold, as Prometheus writes it: `5m`."""
    severity: Severity
    summary: str
    """One line; may use Prometheus' templates."""
    description: str
    panel: tuple[str, str]
    """Where it is seen: uid of a dashboard, and a panel's title."""
    labels: Manifest = field(default_factory=dict)
    """Further labels of the alert."""
    chosen: str = "var-namespace={{ $labels.namespace }}"
    """Selection that the dashboard is opened with, as part of its address."""

    @property
    def expr(self) -> str:
        """The whole expression: no series while all is well."""
        return f"{self.value} {self.condition}".rstrip()

    def to_rule(self, runbook_url_base: str = "") -> Manifest:
        """The alert of a rule file, or of a PrometheusRule; with `runbook_url` where the base of
        docs/runbooks is known."""
        uid, title = self.panel
        base = runbook_url_base.rstrip("/")
        runbook = {"runbook_url": f"{base}/{self.name}.md"} if base else {}
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.lasting,
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                **runbook,
                "dashboard": f"/d/{uid}?{self.chosen}&viewPanel={panel_id(uid, title)}",
            },
        }


def panel_id(uid: str, title: str) -> int:
    """The number of a panel in its dashboard, 1 to a million, derived from its names alone."""
    return zlib.crc32(f"{uid}/{title}".encode()) % _IDS + 1
