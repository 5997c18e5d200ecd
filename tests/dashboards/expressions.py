"""Every expression of every panel, recorded series and alert, and who has the metrics in it."""

from __future__ import annotations

from typing import Final

from dashboards.alerts import ALERTS
from dashboards.pages import DASHBOARDS
from dashboards.recording import RECORDED

_OPERATORS: Final = ("sluice_operator_", "sluice_autoscaler_")
"""How metrics begin that neither engines nor routers have."""
_ALL: Final = sorted(
    {query.expr for page in DASHBOARDS for panel in page.panels() for query in panel.queries}
    | {alert.value for alert in ALERTS}
    | RECORDED.keys()
)
OF_OPERATOR: Final = [expr for expr in _ALL if any(name in expr for name in _OPERATORS)]
_CANARY: Final = "sluice_router_canary_"
"""How metrics begin that routers have while pools' Services have a canary's label."""
OF_SERVICE: Final = [expr for expr in _ALL if expr not in OF_OPERATOR and _CANARY not in expr]
